"""Pinned plans: each whole, as the link of its plan says it, with a note; the URL carries them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final
from urllib.parse import parse_qs, urlencode

import streamlit as st

from analysis.criteria import criterion_label
from analysis.errors import PlanError, UserError
from analysis.model.moe_model import MoEModel
from app.literal import literal
from app.loaded import CurrentPlan
from app.session.controls import BESIDE
from app.session.plan_files import content_of, is_content, keep_plan
from app.session.repairs import REPAIR
from app.session.state import PINNED, PINNED_SECOND, PLAN_WORDS
from pruning.plan.plan import NEURON_GRANULARITY, PruningPlan
from pruning.planning.choice import MOST_TEXT, corpora_words, schedule_words
from pruning.planning.make import PLAN_FILE
from pruning.spec.base import flat_fields
from pruning.spec.spec import BUDGETS, PlanSpec

MOST_PINS: Final = 6
MOST_NOTE: Final = 80  # characters
_DIGITS: Final = 8  # of a digest
_MOST_SAID: Final = 60  # characters of a value in a message
_MOST_NAME: Final = 120  # characters of the name of a file
_MOST_VALUES: Final = 400  # of a pin: counts of that many layers
_PLAN, _MODEL, _NOTE = "plan", "model", "note"
_FILE, _CONTENT = "file", "content"
_OF_PLAN: Final = {*flat_fields(PlanSpec), *BESIDE, REPAIR}
_WIDTHS: Final = ("width_mode", "width_multiple_of")


@dataclass(frozen=True, slots=True)
class Pin:
    """A plan that was pinned: what its link says, and what the plan was."""

    words: Mapping[str, Sequence[str]]  # as in the URL of the plan: parameter -> values
    digest: str  # the first digits of the plan's, as it was when it was pinned
    model: str  # name
    note: str = ""  # typed by a person
    file: str = ""  # name of the file that the plan is from, beside which its words are controls
    content: str = ""  # digest of that file, see `plan_files`

    @property
    def text(self) -> str:
        """The pin in the URL."""
        facts = {_PLAN: self.digest, _MODEL: self.model, **self.words}
        others = {_FILE: self.file, _CONTENT: self.content, _NOTE: self.note}
        return urlencode(facts | {name: text for name, text in others.items() if text}, doseq=True)

    @property
    def by_neuron(self) -> bool:
        """Whether its plan removes neurons."""
        return NEURON_GRANULARITY in self.words.get("granularity", ())

    @property
    def name(self) -> str:
        """What tells it from other pins: one plan of neurons may be exported in several widths."""
        return _name(self.digest, self.words)


def _name(digest: str, words: Mapping[str, Sequence[str]]) -> str:
    widths = [word for name in _WIDTHS for word in words.get(name, ())]
    return ".".join([PINNED_SECOND + digest, *widths])


def name_of(current: CurrentPlan) -> str:
    """The name of a pin of the plan on screen."""
    return _name(current.plan.digest[:_DIGITS], st.session_state.get(PLAN_WORDS, {}))


def pin_of(current: CurrentPlan) -> Pin:
    """The plan on screen: its controls, as `write_link` wrote them, and its file."""
    is_repaired_here = current.plan.repair and (current.repaired_by or not current.file)
    repair = {REPAIR: [str(st.session_state[REPAIR])]} if is_repaired_here else {}
    words = {**st.session_state.get(PLAN_WORDS, {}), **repair}
    pin = Pin(words, current.plan.digest[:_DIGITS], current.plan.model.name)
    if not current.file:
        return pin
    file = _file_name(current.file) or PLAN_FILE
    return replace(pin, file=file, content=content_of(_plan_of_file(current)))


def _plan_of_file(current: CurrentPlan) -> PruningPlan:
    """The plan as its file has it, without the repair that the controls chose."""
    return current.plan.unrepaired if current.repaired_by else current.plan


def _file_name(text: str) -> str:
    return "".join(letter for letter in text if letter.isprintable())[:_MOST_NAME]


def parse_pin(text: str) -> Pin:
    """The pin of a URL.

    Raises:
        PlanError: it is none; whether a model has its plan is not looked at.
    """
    if len(text) > MOST_TEXT:
        raise _too_long()
    try:
        words = parse_qs(
            text, keep_blank_values=True, strict_parsing=True, max_num_fields=_MOST_VALUES
        )
    except ValueError:
        words = {}
    digest, model, note, file, content = (
        words.pop(name, [""])[-1] for name in (_PLAN, _MODEL, _NOTE, _FILE, _CONTENT)
    )
    if len(digest) != _DIGITS or not set(digest) <= set("0123456789abcdef"):
        raise PlanError(f"{text[:_MOST_SAID]!r} does not begin with {_PLAN}= and a digest.")
    if unknown := sorted(words.keys() - _OF_PLAN):
        raise PlanError(f"No plan has {unknown[0][:_MOST_SAID]!r}.")
    file = _file_name(file)  # before it is looked at: its letters may all be control characters
    if bool(file) != bool(content) or (content and not is_content(content)):
        raise PlanError(f"{_FILE}= and {_CONTENT}= name a pinned file together, by its SHA-256.")
    pin = Pin(words, digest, model, plain_note(note), file, content)
    if len(pin.text) > MOST_TEXT:  # letters that are no ASCII are longer in a URL
        raise _too_long()
    return pin


def _too_long() -> PlanError:
    return PlanError(f"It is longer than {MOST_TEXT:,} characters.")


def plain_note(text: str) -> str:
    """A note in one line, without characters that are not printed, and cut to its length."""
    printed = "".join(letter if letter.isprintable() else " " for letter in text)
    return " ".join(printed.split())[:MOST_NOTE].rstrip()


def pins() -> list[Pin]:
    """All that are pinned, the first one first."""
    return [parse_pin(text) for text in st.session_state.get(PINNED, ())]


def pins_of(model: MoEModel) -> list[Pin]:
    """The pinned plans of a model."""
    return [pin for pin in pins() if pin.model == model.name]


def pin_named(name: object, model: MoEModel) -> Pin | None:
    """The pin of this name, if the model has it."""
    return next((pin for pin in pins_of(model) if pin.name == name), None)


def words_of_pins(model: MoEModel) -> dict[str, str]:
    """Name -> words of each pinned plan of a model."""
    return {pin.name: f"{_in_words(pin)} (pinned {pin.digest})" for pin in pins_of(model)}


def pin_options(model: MoEModel, *, by_neuron: bool = False) -> dict[str, str]:
    """Those of the granularity, for the choice of the second plan."""
    names = {pin.name for pin in pins_of(model) if pin.by_neuron == by_neuron}
    return {name: text for name, text in words_of_pins(model).items() if name in names}


def second_key(*, by_neuron: bool) -> str:
    """Key of the choice of the second plan; that of neurons is pinned, or there is none."""
    return "neurons.second" if by_neuron else "baseline"


def chosen_second(model: MoEModel, *, by_neuron: bool) -> Pin | None:
    """The pin that is chosen as the second plan."""
    return pin_named(st.session_state.get(second_key(by_neuron=by_neuron)), model)


def _in_words(pin: Pin) -> str:
    if pin.file:
        return pin.file[:_MOST_SAID]
    criterion, schedule, *amounts = (
        "".join(pin.words.get(name, ())) for name in ("criterion", "schedule", *BUDGETS)
    )
    corpora = pin.words.get("corpora", ())
    try:
        read = corpora_words(corpora)
    except UserError:  # nobody looked at it while another model was shown
        read = ", ".join(corpora)
    words = (criterion_label(criterion), read, schedule_words(schedule), *amounts)
    return ", ".join(filter(None, words))[:_MOST_SAID]


def is_shown_pinned(current: CurrentPlan) -> bool:
    """Whether the plan on screen is pinned."""
    return name_of(current) in {pin.name for pin in pins()}


def toggle_shown(current: CurrentPlan) -> None:
    """Pin the plan on screen, or remove its pin; for callbacks."""
    if is_shown_pinned(current):
        unpin(name_of(current))
    else:
        pin_shown(current)


def pin_shown(current: CurrentPlan) -> None:
    """Pin the plan on screen, and keep its file; a toast says why there is no place for it."""
    pin = pin_of(current)
    if len(pins()) >= MOST_PINS:
        st.toast(f"{MOST_PINS} plans are pinned, which is the most; remove one on Compare first.")
    elif len(pin.text) > MOST_TEXT:
        st.toast(
            f"This plan takes {len(pin.text):,} characters of a URL, and a pin at most "
            f"{MOST_TEXT:,}; save its plan.json instead."
        )
    else:
        try:
            if current.file:
                keep_plan(_plan_of_file(current))
        except PlanError as error:
            st.toast(literal(error))
            return
        _keep([*pins(), pin])


def unpin(*names: str) -> None:
    """Remove the pins of these names; for callbacks."""
    _keep([pin for pin in pins() if pin.name not in names])


def unpin_others(model: MoEModel) -> None:
    """Remove the pins of every other model; for callbacks."""
    _keep(pins_of(model))


def write_note(pin: Pin, key: str) -> None:
    """Give a pin the note in the text field of this key; for callbacks."""
    new_pin = replace(pin, note=plain_note(str(st.session_state.get(key) or "")))
    if len(new_pin.text) <= MOST_TEXT:
        _keep([new_pin if other.name == pin.name else other for other in pins()])
    else:
        st.toast("The plan and this note are too long for a URL; shorten the note.")


def _keep(kept: Sequence[Pin]) -> None:
    if kept:
        st.session_state[PINNED] = tuple(pin.text for pin in kept)
    else:
        st.session_state.pop(PINNED, None)


def left_out(place: int, why: str) -> str:
    """A line on a pin of the URL that is left out, as Markdown."""
    return f"Pinned plan {place} is left out: {literal(why)}"
