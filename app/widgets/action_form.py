"""Forms of actions: a widget for each field that a person sets, read off the request.

These are the fields that are required, those that the action declares itself, and a few that all
measurements share. The others have their defaults; a command line has them all.
"""

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, get_args

import streamlit as st
from pydantic.fields import FieldInfo
from streamlit.delta_generator import DeltaGenerator

from analysis.criteria import CRITERIA, NEURON_CRITERIA, criterion_label
from analysis.errors import UserError
from app.errors import show_error
from app.loaded import Loaded
from app.session.data import corpus_label, held_out_corpora
from app.session.job_queue import own_model
from app.widgets.job_form import (
    calibrated_field,
    offer_job,
    queue_button,
    samples_field,
    skip_field,
)
from app.widgets.job_panel import job_panel
from pruning.actions.listing import SENTENCES, action
from pruning.plan.plan import NEURON_GRANULARITY
from pruning.requests.model import ActionOptions, ActionRequest
from pruning.spec.base import (
    Request,
    bounds,
    choices_of,
    declared,
    default_of,
    flat_fields,
    is_plan,
    option_of,
    validated,
)

_SHARED: Final = ("calibrated_on", "samples", "skip_bad_rows")
# Whoever types a command decides on these: see docs/dev/security.md.
_COMMANDS_ALONE: Final = ("trust_remote_code", "allow_test_set", "allow_small_ids")
_SPARSITIES: Final = ("25%", "50%", "75%")
_COLUMNS: Final = 3
_USUAL: Final = "as usual"  # in place of no value


@dataclass(frozen=True)
class Field:
    """A field of a form."""

    loaded: Loaded
    kind: type[Request]
    name: str
    key: str
    granularity: str

    @property
    def info(self) -> FieldInfo:
        """What the request says of it."""
        return flat_fields(self.kind)[self.name]

    @property
    def label(self) -> str:
        """Its name in words."""
        return self.name.replace("_", " ").capitalize()

    @property
    def help(self) -> str | None:
        """As the command line explains it."""
        option = option_of(self.info)
        return option.help.replace("; repeatable", "") if option else None

    @property
    def takes_one(self) -> bool:
        """Whether a tuple holds one value."""
        return any(getattr(rule, "max_length", None) == 1 for rule in declared(self.info))


# Actions whose pages draw a form of their own.
_ELSEWHERE: Final = (
    "bins",
    "evaluate",
    "sweep",
    "benchmark",
    "variance",
    "ask",
    "export",
    "repair",
)


def forms_at(place: str, loaded: Loaded) -> None:
    """Draw the forms of the actions whose jobs are listed at a part of a page, and the jobs.

    Actions with a form of their own are left out.
    """
    for name in SENTENCES:
        if name not in _ELSEWHERE and action(name).place == place:
            part = st.expander(SENTENCES[name], key=f"form.{name}", on_change="rerun")
            if part.open:
                with part:
                    action_form(loaded, name, loaded.model.name)
    job_panel(place)


def action_form(loaded: Loaded, name: str, about: str, **fixed: str) -> None:
    """Queue an action as a job.

    `fixed` are fields that the page decides, `about` goes into the title. A plan that the action
    takes is the one on screen.
    """
    kind: type[ActionRequest] = action(name).request
    plan = loaded.shown if any(map(is_plan, flat_fields(kind).values())) else None
    prefix = ".".join((name, *fixed.values()))
    with st.form(prefix, border=False):
        values = _drawn(loaded, kind, prefix, fixed)
        sent = queue_button("Run measurement")
    fields = flat_fields(kind)
    if lacking := [name for name in values if values[name] == () and fields[name].is_required()]:
        st.text(f"Choose {' and '.join(lacking)}.")
        return
    if plan:
        values |= {field: _plans(kind, field, plan.plan.to_dict()) for field in _plan_fields(kind)}
    try:
        request = validated(kind, {**own_model(loaded), **fixed, **values})
    except UserError as error:
        show_error(error)
        return
    offer_job(loaded, request, about, sent=sent, plan=plan)


def _plan_fields(kind: type[Request]) -> list[str]:
    return [name for name, field in flat_fields(kind).items() if is_plan(field)]


def _plans(kind: type[Request], name: str, plan: dict[str, Any]) -> Any:
    return (plan,) if isinstance(default_of(flat_fields(kind)[name]), tuple) else plan


def form_fields(kind: type[Request], fixed: Mapping[str, str]) -> Iterator[str]:
    """The fields of a request that its form shows, required ones first."""
    fields = flat_fields(kind)
    declaring = [kind, *(base for base in kind.__mro__ if issubclass(base, ActionOptions))]
    own = set(_SHARED).union(*map(inspect.get_annotations, declaring))
    names = [name for name, field in fields.items() if field.is_required() or name in own]
    for name in sorted(names, key=lambda field_name: not fields[field_name].is_required()):
        if name not in fixed and _is_shown(name, fields[name]):
            yield name


def _is_shown(name: str, field: FieldInfo) -> bool:
    """Whether a widget sets this field: one that is named here, choices, a switch or a number.

    Words are none: they could name files of the server. Nor is what only a command line allows.
    """
    option = option_of(field)
    if option is None or option.place or option.words or name in _COMMANDS_ALONE:
        return False
    if name in _WIDGETS or choices_of(field):
        return True
    kinds = set(_kinds(field.annotation))
    return bool(kinds & {bool, int}) and not kinds & {str, Path}


def _kinds(annotation: Any) -> Iterator[Any]:
    yield annotation
    for inner in get_args(annotation):
        yield from _kinds(inner)


def _drawn(
    loaded: Loaded, kind: type[Request], prefix: str, fixed: Mapping[str, str]
) -> dict[str, Any]:
    """Draw the fields in rows; the values of those that were given."""
    values: dict[str, Any] = {}
    granularity = fixed.get("granularity", "expert")
    places: Sequence[DeltaGenerator] = ()
    for number, name in enumerate(form_fields(kind, fixed)):
        if number % _COLUMNS == 0:
            places = st.columns(_COLUMNS)
        field = Field(loaded, kind, name, f"{prefix}.{name}", granularity)
        values[name] = _WIDGETS.get(name, _by_type)(field, places[number % _COLUMNS])
    return {name: value for name, value in values.items() if value is not None}


def _look(field: Field) -> dict[str, Any]:
    return {"key": field.key, "help": field.help}


def _by_type(field: Field, place: DeltaGenerator) -> Any:
    """A field as its type says: choices, a switch or a whole number."""
    default, look = default_of(field.info), _look(field)
    is_optional = default is None and not field.info.is_required()
    if names := choices_of(field.info):
        options = [_USUAL, *names] if is_optional else list(names)
        index = options.index(default) if default in options else 0
        chosen = place.selectbox(
            field.label, options, index=index, format_func=lambda name: name.capitalize(), **look
        )
        return None if chosen == _USUAL else chosen
    if isinstance(default, bool):
        return place.checkbox(field.label, default, **look)
    least, most = bounds(field.kind, field.name)
    number = place.number_input(field.label, least, most, default, step=1, **look)
    return None if number is None else int(number)


def _criterion(field: Field, place: DeltaGenerator) -> Any:
    names = list(NEURON_CRITERIA if field.granularity == NEURON_GRANULARITY else CRITERIA)
    chosen = field.loaded.choices.criterion
    return place.selectbox(
        "Criterion",
        names,
        index=names.index(chosen.name) if chosen and chosen.name in names else 0,
        format_func=criterion_label,
        key=field.key,
    )


def _criteria(field: Field, place: DeltaGenerator) -> Any:
    chosen = place.multiselect(
        "Criteria", list(CRITERIA), ["reap"], format_func=criterion_label, key=field.key
    )
    return tuple(chosen)


def _corpora(field: Field, place: DeltaGenerator) -> Any:
    corpora = held_out_corpora(field.loaded)
    look: dict[str, Any] = {"format_func": corpus_label, "key": field.key}
    if field.takes_one:
        chosen = place.selectbox("Held-out corpus", corpora, placeholder="no corpus", **look)
        return (chosen,) if chosen else ()
    return tuple(place.multiselect("Held-out corpora", corpora, corpora[:1], **look))


def _sparsities(field: Field, place: DeltaGenerator) -> Any:
    return tuple(place.multiselect("Sparsities", _SPARSITIES, ["50%"], key=field.key))


# Fields whose values the page knows better than their type does.
_WIDGETS: Final[Mapping[str, Callable[[Field, DeltaGenerator], Any]]] = {
    "criterion": _criterion,
    "criteria": _criteria,
    "corpora": _corpora,
    "calibrated_on": lambda field, place: calibrated_field(
        field.loaded, field.key.rpartition(".")[0], place
    ),
    "samples": lambda field, place: samples_field("Samples", field.key.rpartition(".")[0], place),
    "skip_bad_rows": lambda field, place: skip_field(field.key, place),
    "sparsities": _sparsities,
    "sparsity": lambda field, place: place.selectbox(
        "Sparsity", _SPARSITIES, index=1, key=field.key
    ),
}
