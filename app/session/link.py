"""The URL of a plan: how its spec differs from that of a new session."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import streamlit as st
from streamlit.runtime.scriptrunner import get_script_run_ctx

from analysis.criteria import CRITERIA
from analysis.errors import PlanError, UserError
from analysis.model.moe_model import MoEModel
from app.literal import literal
from app.session.controls import BESIDE, USUAL, asked_spec, controls_for
from app.session.data import losses_of
from app.session.pins import MOST_PINS, Pin, left_out, parse_pin
from app.session.plan_state import LOST
from app.session.repairs import AS_PRUNED, REPAIR
from app.session.state import PINNED, PLAN_WORDS, Controls, Page
from pruning.planning.choice import MOST_TEXT
from pruning.records.quality import PlanLoss, losses_at
from pruning.search.store import SEARCH
from pruning.spec.base import flat_fields
from pruning.spec.spec import PlanSpec, spec_of_words

_SHARE: Final = 0.5
_OPENED: Final = "opened"  # in the session, and in the URL of a plan of defaults
_FIELDS: Final = flat_fields(PlanSpec)
_NAMES: Final = (*_FIELDS, *BESIDE, _OPENED)
# In which the fields of a link are tried: what others depend on comes first.
_ORDER: Final = tuple(dict.fromkeys(("granularity", *_FIELDS)))
_MOST_SAID: Final = 60  # characters of a value
_FILE: Final = "file"  # of an imported plan, see `why_lost`


def open_link(model: MoEModel, corpora: Sequence[str]) -> None:
    """Set the controls, before they are drawn, to what the URL asks for.

    Only in a new session and after Back or Forward: else what the person set counts. A URL that
    names no plan opens on the best one of half of the experts that engines serve; Back passes over
    it. Those that pages make always name one, or a reload would replace a plan of defaults.
    """
    is_first, context = _OPENED not in st.session_state, get_script_run_ctx()
    names_a_plan = any(name in st.query_params for name in (*_NAMES, _FILE))
    st.session_state[_OPENED] = True
    if is_first:
        st.session_state.update(USUAL)
    if is_first and not names_a_plan:
        st.session_state.update(_best_controls(model, corpora))
        _say_lost(_take_pins(model, corpora))
    elif is_first or (names_a_plan and context is not None and context.is_history_navigation):
        link = Link.of(_url(), model, corpora)
        controls, problems = link.controls()
        problems += _take_pins(model, corpora)
        st.session_state.update(controls)
        _say_lost(problems)


def _say_lost(problems: Sequence[str]) -> None:
    words = " ".join(["The URL asks for what is not here.", *problems])
    st.session_state[LOST] = words if problems else ""


def _url() -> dict[str, list[str]]:
    return {name: st.query_params.get_all(name) for name in st.query_params}


def _take_pins(model: MoEModel, corpora: Sequence[str]) -> list[str]:
    """Pin the plans of the URL; a line on each that no controls ask for.

    Those of other models wait until their model is shown.
    """
    texts = list(dict.fromkeys(st.query_params.get_all(PINNED)))
    by_name: dict[tuple[str, str], str] = {}
    problems = []
    for place, text in enumerate(texts[:MOST_PINS], 1):
        try:
            pin = parse_pin(text)
            if pin.model == model.name:
                controls_of_pin(pin, model, corpora)
        except UserError as error:
            problems.append(left_out(place, str(error)))
        else:
            by_name.setdefault((pin.model, pin.name), pin.text)
    if len(texts) > MOST_PINS:
        problems.append(f"The URL pins {len(texts)} plans; the first {MOST_PINS} are taken.")
    if by_name:
        st.session_state[PINNED] = tuple(by_name.values())
    else:
        st.session_state.pop(PINNED, None)
    return problems


def controls_of_pin(pin: Pin, model: MoEModel, corpora: Sequence[str]) -> dict[str, Any]:
    """The controls that ask for a pinned plan.

    Raises:
        PlanError: no controls ask for all of it.
    """
    repair = [*pin.words.get(REPAIR, ()), AS_PRUNED][0]
    return Link.of(pin.words, model, corpora).whole_controls() | {REPAIR: repair}


@dataclass(frozen=True)
class Link:
    """What a URL or a pin asks of a plan."""

    model: MoEModel
    corpora: Sequence[str]  # the calibrated ones
    words: Mapping[str, Sequence[str]]  # field of the spec -> its words
    beside: Mapping[str, str]  # key of a control beside the spec -> its value

    @classmethod
    def of(
        cls, url: Mapping[str, Sequence[str]], model: MoEModel, corpora: Sequence[str]
    ) -> "Link":
        """That of the parameters of a URL; others say nothing of a plan."""
        words = {name: url[name] for name in _FIELDS if name in url}
        other_values = {name: url[name][-1][:MOST_TEXT] for name in BESIDE if name in url}
        return cls(model, corpora, words, other_values)

    def controls(self) -> tuple[dict[str, Any], list[str]]:
        """The controls that it asks for, without what it cannot have; a line on each of these.

        Without its criterion, the rest changes the plan that a bare URL opens.
        """
        granularity = self.words.get("granularity", [""])[-1]
        usual = _usual_spec(granularity, self.model, self.corpora)
        controls, problems = self._of_spec(self.words, usual)
        if "criterion" in problems and not usual.by_neuron:
            others = {name: word for name, word in self.words.items() if name != "criterion"}
            best = {**USUAL, **_best_controls(self.model, self.corpora)}
            controls, rest = self._of_spec(others, asked_spec(best, self.model, self.corpora))
            message = f"{problems['criterion']} The rest of the URL changes the opening plan."
            problems = {"criterion": message, **rest}
        other_controls, more = self._of_beside()
        return controls | other_controls, [*map(literal, [*problems.values(), *more])]

    def whole_controls(self) -> dict[str, Any]:
        """The controls that ask for all of it; a PlanError if none do."""
        granularity = self.words.get("granularity", [""])[-1]
        controls = self._with_all(self.words, _usual_spec(granularity, self.model, self.corpora))
        other_controls, problems = self._of_beside()
        if problems:
            raise PlanError(problems[0])
        return controls | other_controls

    def _of_spec(
        self, words: Mapping[str, Sequence[str]], usual: PlanSpec
    ) -> tuple[dict[str, Any], dict[str, str]]:
        """The controls of the usual spec with these fields; field -> why it was left out."""
        try:
            return self._with_all(words, usual), {}
        except UserError:  # then one after the other
            kept: dict[str, Sequence[str]] = {}
            controls, problems = self._with_all(kept, usual), {}
        for name in sorted(words, key=_ORDER.index):
            try:
                controls = self._with_all({**kept, name: words[name]}, usual)
                kept[name] = words[name]
            except UserError as error:
                message = str(error)
                problems[name] = message if name in message else f"{name}: {message}"
        return controls, problems

    def _with_all(self, words: Mapping[str, Sequence[str]], usual: PlanSpec) -> dict[str, Any]:
        if long := [name for name, word in words.items() if sum(map(len, word)) > MOST_TEXT]:
            raise PlanError(f"{long[0]} is longer than {MOST_TEXT:,} characters.")
        spec = spec_of_words(words, usual)
        # Before names are compared, which would read a file of that name: a server must not read a
        # path that a browser names.
        for part in spec.corpus_weights:
            if part.corpus not in self.corpora:
                raise PlanError(
                    f"{self.model.name} has not been calibrated on {part.corpus[:80]!r}, but on "
                    f"{', '.join(self.corpora) or 'nothing yet'}."
                )
        return controls_for(spec, self.model, self.corpora)

    def _of_beside(self) -> tuple[dict[str, Any], list[str]]:
        """The controls beside the spec, and lines on values that do not exist."""
        controls: dict[str, Any] = dict(self.beside)
        if "searched" in controls:
            # Without its name, the search that fits best is shown.
            controls["schedule"] = SEARCH
        problems, page = [], Page({}, self.model, self.corpora)
        for name, value in self.beside.items():
            row = BESIDE[name]
            known = list(filter(None, row.offered(page)))
            # A list may be empty; a text has none.
            if row.options and value not in ("", *known):
                problems.append(_unknown(row.label.lower(), controls.pop(name), known))
        return controls, problems


def _unknown(what: str, value: str, known: Sequence[str]) -> str:
    """A line on a value of the URL that does not exist, and on those that do."""
    others = f", but {', '.join(known)}" if known else ""
    return f"There is no {what} {value[:_MOST_SAID]!r} here{others}."


def _usual_spec(granularity: str, model: MoEModel, corpora: Sequence[str]) -> PlanSpec:
    return asked_spec({**USUAL, "granularity": granularity}, model, corpora)


def _best_controls(model: MoEModel, corpora: Sequence[str]) -> dict[str, Any]:
    """The controls of the best measured plan of half of the experts that they can ask for.

    Of those with equal layers, if there are some: serving engines load no others. By criteria that
    have a name: of 17 variants the best on half of the samples is the best by luck, too.
    """
    losses = [
        loss
        for loss in losses_at(losses_of(model), _SHARE)
        if (spec := loss.facts.asked) is not None
        and spec.ranking.criterion in CRITERIA
        and not (loss.is_random or loss.is_repaired or spec.by_neuron)
    ]
    losses = [loss for loss in losses if not (loss.way or loss.missing)]
    losses = [loss for loss in losses if _has_equal_layers(loss)] or losses
    for best in sorted(losses, key=lambda loss: (loss.mean, loss.plan)):
        try:
            return controls_for(best.facts.asked, model, corpora) if best.facts.asked else {}
        except PlanError:  # the next best may have controls
            continue
    return {}


def _has_equal_layers(loss: PlanLoss) -> bool:
    spec = loss.facts.asked
    return spec is not None and spec.leaves_layers_alike


def link_words(
    asked: PlanSpec, controls: Controls, model: MoEModel, corpora: Sequence[str]
) -> dict[str, list[str]]:
    """The parameters of a plan's URL: how it differs from the usual one, and what is beside it."""
    granularity = asked.ranking.granularity
    link = asked.differences(_usual_spec(granularity, model, corpora))
    link |= {"granularity": [granularity]} if asked.by_neuron else {}
    is_search = controls["schedule"] == SEARCH and not asked.by_neuron
    beside = {name: str(controls[name] or "") for name in BESIDE}
    link |= {name: [text] for name, text in beside.items() if text and name != "searched"}
    return link | ({"searched": [beside["searched"]]} if is_search else {})


def pin_words(asked: PlanSpec, link: Mapping[str, Sequence[str]]) -> dict[str, Sequence[str]]:
    """The same for a pin, which names what another calibration may make the usual of."""
    amounts = {name: [str(amount)] for name, amount in asked.budget.amounts.items()}
    ranked_by = {
        "criterion": [asked.ranking.criterion],
        "corpora": [*asked.ranking.corpora],
        **amounts,
    }
    return {name: words for name, words in ranked_by.items() if any(words)} | dict(link)


def write_link(asked: PlanSpec, model: MoEModel, corpora: Sequence[str]) -> None:
    """Make the URL that of a plan and of the pins; the parameters of views are left alone."""
    link = link_words(asked, st.session_state, model, corpora)
    st.session_state[PLAN_WORDS] = pin_words(asked, link)
    # With the rest: before the component `history` is there, each update adds an entry for Back.
    link = link or {_OPENED: ["1"]}
    if pinned := st.session_state.get(PINNED):
        link |= {PINNED: [*pinned]}
    for name in (*_NAMES, PINNED):
        if name in st.query_params and name not in link:
            del st.query_params[name]
    changed = {
        name: values for name, values in link.items() if st.query_params.get_all(name) != values
    }
    if changed:
        st.query_params.update(changed)
