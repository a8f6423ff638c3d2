"""What a control of the plan is, what its values become in the spec and back; what buttons set."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeVar

import streamlit as st

from analysis.corpora.spec import corpus_weight_text, name_among
from analysis.criteria import (
    CRITERIA,
    NEURON_CRITERIA,
    RANKABLE,
    VARIANTS,
    Criterion,
    get_criterion,
    unified,
)
from analysis.criteria.heapr import DEFAULT_LAMBDA, camera_p
from analysis.errors import PlanError
from analysis.model.moe_model import MoEModel
from analysis.numbers.sparsity import parse_sparsity
from app.choices import BLEND, CONSTANT, Choices
from app.session.plan_state import forget_import
from pruning.plan.bits import FORMATS
from pruning.plan.layer_words import experts_words, ranges
from pruning.plan.plan import NEURON_GRANULARITY
from pruning.planning.choice import (
    EXPERT_BUDGETS,
    HAND,
    NEURON_BUDGETS,
    SPARSITY_STEP,
    counts_in,
    counts_text,
    possible_percents,
    possible_shrinks,
    scopes_of,
)
from pruning.schedules import MEASURED
from pruning.search.store import SEARCH
from pruning.spec.spec import PlanSpec

Value = TypeVar("Value")
Controls = Mapping[Any, Any]  # key -> value: the session itself, or what a link says
Fields = Mapping[str, Any]
Group = Literal["granularity", "corpus", "budget", "criterion", "schedule", "search", "limits"]

UNIFIED = "unified"
# Session keys: pinned plans, as in the URL; what the URL says of the plan on screen.
PINNED, PLAN_WORDS = "pinned", "plan.words"
PINNED_SECOND: Final = "plan:"  # begins the name of a pinned plan in the choice of the second one
BITS: Final = "bits"  # in which evaluations simulate the plan; beside its spec, as a repair is
# Criteria outside the unified family.
OTHER = tuple(name for name, criterion in CRITERIA.items() if criterion.exponents is None)
# Criteria of experts: also unified variants without a name.
BASELINES = tuple(dict.fromkeys((*CRITERIA, *(unified(*exponents).name for exponents in RANKABLE))))
USUAL_BASELINE = "frequency"
USUAL_OF_NEURONS: Final = "heapr"
EXPONENTS = ("b", "alpha", "beta")
EQUAL_SHARE = 50
MOST_LAMBDA = 100.0
# Keys of other controls on every page, which the URL carries over as they are.
_CARRIED: Final = ("baseline", "neurons.second", "expert", "repair")
_LAST: Final = "page.last"
_BEFORE: Final = "page.before"
_ASKED: Final = "page.asked"
_MOST_SAID: Final = 60  # characters of a value in a message


def one_of(value: object, options: Sequence[Value], usual: Value | None = None) -> Value:
    """Validate a widget value; an unknown one becomes `usual` or the first option."""
    first = options[0] if usual is None else usual
    return options[options.index(value)] if value in options else first


def controls_on_page() -> dict[str, Any]:
    """The values of all controls."""
    return st.session_state.to_dict()  # `items` looks every key up by itself


def is_about_neurons() -> bool:
    """Whether the granularity is neurons."""
    return bool(st.session_state.get("granularity") == NEURON_GRANULARITY)


# What a control is.


@dataclass(frozen=True, slots=True)
class Page:
    """What controls are read on: their values, the model, and its calibrated corpora."""

    values: Controls
    model: MoEModel
    corpora: Sequence[str]

    @property
    def by_neuron(self) -> bool:
        """Whether the granularity is neurons."""
        return bool(self.values.get("granularity") == NEURON_GRANULARITY)


@dataclass(frozen=True, slots=True)
class Meaning:
    """What a control asks of the spec, and how a spec sets the control."""

    asks: Callable[["Control", Page], Fields]  # -> fields of the spec
    shows: Callable[["Control", PlanSpec, Page], Fields]  # -> controls


def _field(spec: PlanSpec, name: str) -> Any:
    return next(getattr(part, name) for _, part in spec if name in type(part).model_fields)


def by_value(asked: Callable[[Any], Any], shown: Callable[[Any], Any]) -> Meaning:
    """Of a control and a field of which each says the other alone: value -> value."""
    return Meaning(
        lambda row, page: {row.field: asked(row.value(page))},
        lambda row, spec, _: {row.key: shown(_field(spec, row.field))},
    )


SAME: Final = Meaning(
    lambda row, page: {row.field: row.value(page)},
    lambda row, spec, _: {row.key: _field(spec, row.field)},
)


@dataclass(frozen=True, eq=False, kw_only=True)
class Control:
    """A control of the plan: what it asks of the spec, and how it is drawn."""

    field: str = ""  # of the spec and of the URL; beside the spec, the URL has the key
    key: str = ""  # of the widget and of the session; default: the field
    usual: Any = ""  # of a new session; None: the first option
    label: str
    help: str | None = None
    widget: Callable[..., Any] = st.segmented_control
    options: Sequence[Any] | Callable[[Page], Sequence[Any]] = ()  # none of a text or number
    words: Callable[[Any], str] = str  # of an option
    group: Group = "limits"  # drawn together, in the order of the table
    of: Literal["", "expert", "neuron"] = ""  # the granularity that has it; empty: both
    when: Callable[[Page], bool] | None = None  # it is drawn; None: always
    meaning: Meaning | None = SAME  # None: another row of the field reads it
    look: Fields | Callable[[Page], Fields] | None = None  # further arguments of the widget
    # None: charts read it too, and an imported file stays open.
    on_change: Callable[[], None] | None = forget_import

    def __post_init__(self) -> None:
        object.__setattr__(self, "key", self.key or self.field)

    def offered(self, page: Page) -> Sequence[Any]:
        """The values that a page offers; empty if any text or number will do."""
        return self.options(page) if callable(self.options) else self.options

    def value(self, page: Page) -> Any:
        """Its value; the usual one in place of one that the page does not offer."""
        value, options = page.values.get(self.key), self.offered(page)
        if value in options:
            return options[options.index(value)]
        if not options:
            return str(value or "").strip()
        return self.usual if self.usual in options else options[0]


def criterion_in(controls: Controls) -> Criterion | None:
    """The criterion of experts that controls name; None for the constant variant (1, 0, 0)."""
    if (name := controls.get("criterion")) in OTHER:
        return get_criterion(name)
    exponents = tuple(map(controls.get, EXPONENTS))
    variant = exponents if exponents in VARIANTS else (1, 1, 1)
    return unified(*variant) if variant in RANKABLE else None


def criterion_words(name: str) -> str:
    """A criterion in a list: its label, and its exponents if it has some."""
    if name == UNIFIED:
        return "Constant  (1, 0, 0)"
    criterion = get_criterion(name)
    is_named = name in CRITERIA and criterion.exponents  # S(1,1,2) has its exponents in the name
    return criterion.label + (f"  {criterion.exponents}" if is_named else "")


def corpus_options(corpora: Collection[str]) -> list[str]:
    """Corpora that can rank: each one, and the blend if there are several."""
    return [*corpora, BLEND] if len(corpora) > 1 else list(corpora)


def corpora_of(corpus: str, controls: Controls, corpora: Sequence[str]) -> tuple[str, ...]:
    """`corpus` in the form of --calibrated-on; a blend by its sliders, even without weights."""
    if corpus != BLEND:
        return (corpus_weight_text(corpus),)
    shares = {}
    for name in corpora:
        share = controls.get(share_key(name))
        shares[name] = share if isinstance(share, int) and 0 <= share <= 100 else EQUAL_SHARE
    blended = {name: share for name, share in shares.items() if share} or dict.fromkeys(corpora, 1)
    is_even = len(set(blended.values())) == 1
    return tuple(corpus_weight_text(name, 1 if is_even else w) for name, w in blended.items())


def share_key(corpus: str) -> str:
    """Key of a blend slider."""
    return f"share.{corpus}"


def page_choices(asked: PlanSpec, search: str | None = None) -> Choices:
    """What the controls say; the spec without what does not rank, and without counts by hand."""
    ranking = asked.ranking
    criterion = ranking.rule if ranking.criterion else None
    spec = asked.changed(
        corpora=ranking.corpora if criterion and asked.reads_text else (),
        gate=ranking.gate if criterion and criterion.uses_gate else "applied",
        set={},
    )
    baseline = get_criterion(one_of(st.session_state.get("baseline"), BASELINES, USUAL_BASELINE))
    kept = asked.limits.set
    bits = one_of(st.session_state.get(BITS), ("", *FORMATS))
    return Choices(
        spec, baseline, ranking.corpora, ranking.gate, bits=bits, kept=kept, search=search
    )


def not_here(what: str, label: str = "", offered: Iterable[object] = ()) -> PlanError:
    """The error for what a plan asks for and no control can.

    `label` and `offered` are of a control that has other values.
    """
    others = ", ".join(map(str, offered))
    return PlanError(
        f"This page has no control for {what[:_MOST_SAID]}"
        f"{others and f', but {label!r} for {others}'}; make the plan with `moeprune prune` or "
        "`moeprune plan`, then open it here."
    )


def slider_steps(model: MoEModel, budget: str, *, by_neuron: bool) -> list[int]:
    """The percentages that the slider offers."""
    if by_neuron:  # all neurons can be pruned, but a router needs experts
        return list(range(0, 100, SPARSITY_STEP))
    return possible_shrinks(model) if budget == "shrink" else possible_percents(model)


def blend_controls(weights: Mapping[str, float]) -> dict[str, str | int]:
    """The controls of a blend; weights that are no steps of a slider are rounded to some."""
    most, positive = max(weights.values()), {weight for weight in weights.values() if weight}
    if len(positive) == 1:
        scale = EQUAL_SHARE / most
    else:
        scale = 1 if all(w == int(w) <= 100 for w in positive) else 100 / most
    shares: dict[str, str | int] = {
        share_key(corpus): round(scale * weight) for corpus, weight in weights.items()
    }
    return {"corpus": BLEND, **shares}


def exponent_controls(exponents: tuple[int, int, int]) -> dict[str, Any]:
    """The controls of a member of the unified family."""
    return {"criterion": UNIFIED, **dict(zip(EXPONENTS, exponents, strict=True))}


# What values become in the spec and back, where they do not stay as they are.


def _asked_corpora(row: Control, page: Page) -> Fields:
    known = page.corpora
    return {row.field: corpora_of(row.value(page), page.values, known) if known else ()}


def _corpora_shown(row: Control, spec: PlanSpec, page: Page) -> Fields:
    corpora = page.corpora
    weights = {name_among(corpora, part.corpus): part.weight for part in spec.corpus_weights}
    if missing := sorted(weights.keys() - set(corpora)):
        raise PlanError(
            f"{page.model.name} has not been calibrated on {missing[0]}; start that on the Start "
            "page, or run the recipe with `moeprune prune`."
        )
    if len(weights) > 1:
        return blend_controls(dict.fromkeys(corpora, 0.0) | weights)
    return {row.key: next(iter(weights or corpora), "")}


def possible_budgets(page: Page) -> tuple[str, ...]:
    """Fields that the slider of a page can set."""
    return tuple(NEURON_BUDGETS if page.by_neuron else EXPERT_BUDGETS)


def possible_steps(page: Page) -> Sequence[int]:
    """The percentages that the slider of a page offers."""
    return slider_steps(page.model, page.values["budget"], by_neuron=page.by_neuron)


def _asked_budget(row: Control, page: Page) -> Fields:
    percent = page.values.get(row.key)
    budget = one_of(page.values.get("budget"), possible_budgets(page))
    return {budget: f"{percent if type(percent) is int else row.usual}%"}


def _budget_shown(row: Control, spec: PlanSpec, page: Page) -> Fields:
    name, amount = next(iter(spec.budget.amounts.items()), ("a file", ""))
    offered: tuple[str, ...] = ()
    if name in possible_budgets(page):
        percent = 100 * parse_sparsity(amount)
        steps = slider_steps(page.model, name, by_neuron=spec.by_neuron)
        if percent in steps:
            return {"budget": name, row.key: int(percent)}
        offered = (f"{steps[0]}% to {steps[-1]}% in steps of {SPARSITY_STEP}%",)
    raise not_here(f"{name}: {amount}", row.label, offered)


def _asked_criterion(row: Control, page: Page) -> Fields:
    criterion = criterion_in(page.values)
    return {row.field: criterion.name if criterion else ""}


def _criterion_shown(row: Control, spec: PlanSpec, _: Page) -> Fields:
    if not spec.ranking.criterion:
        return exponent_controls(CONSTANT)
    rule = spec.ranking.rule
    return exponent_controls(rule.exponents) if rule.exponents else {row.key: rule.name}


def possible_criteria(page: Page) -> Sequence[str]:
    """Criteria of experts; the constant variant only while the toggles say it."""
    return BASELINES if criterion_in(page.values) else (*BASELINES, UNIFIED)


def has_exponents(page: Page) -> bool:
    """Whether the criterion is of the unified family."""
    return page.values.get("criterion") not in OTHER


def reads_gates(page: Page) -> bool:
    """Whether gate weights change the ranking."""
    criterion = None if page.by_neuron else criterion_in(page.values)
    return criterion is not None and criterion.uses_gate


def _asked_neuron_criterion(row: Control, page: Page) -> Fields:
    name, weight = row.value(page), page.values.get("lambda")
    if name == "camera-p" and isinstance(weight, int | float) and 0 <= weight <= MOST_LAMBDA:
        name = camera_p(float(weight)).name
    return {row.field: name}


def _neuron_criterion_shown(row: Control, spec: PlanSpec, _: Page) -> Fields:
    rule = spec.ranking.rule.name if spec.ranking.criterion else ""
    name, weight = [*rule.split(":"), ""][:2]
    return {row.key: name, "lambda": float(weight or DEFAULT_LAMBDA)}


def possible_scopes(page: Page) -> Sequence[str]:
    """Among which neurons the criterion of a page can spend the budget."""
    criterion = one_of(page.values.get("neurons"), tuple(NEURON_CRITERIA), USUAL_OF_NEURONS)
    return (*scopes_of(criterion), MEASURED)


def _asked_scope(row: Control, page: Page) -> Fields:
    scope = row.value(page)
    return {"schedule": scope} if scope == MEASURED else {row.field: str(scope)}


def _scope_shown(row: Control, spec: PlanSpec, _: Page) -> Fields:
    return {row.key: MEASURED if spec.spread.is_measured else spec.spread.neuron_scope}


def _schedule_asked(schedule: str) -> str:
    """Counts by hand and searches begin with uniform."""
    return "uniform" if schedule in (HAND, SEARCH) else schedule


def _asked_counts(row: Control, page: Page) -> Fields:
    text = row.value(page)
    by_hand = text and page.values.get("schedule") == HAND
    return {row.field: counts_in(text, page.model.layers)} if by_hand else {}


def _counts_shown(row: Control, spec: PlanSpec, page: Page) -> Fields:
    kept = spec.limits.set
    is_full = kept.keys() == {layer.index for layer in page.model.layers}
    return {"schedule": HAND, row.key: counts_text(kept)} if is_full else {}


def _groups(text: str) -> tuple[str, ...]:
    """Groups such as 3:5,7-9, with blanks or semicolons between them."""
    return tuple(text.replace(";", " ").split())


CORPORA: Final = Meaning(_asked_corpora, _corpora_shown)
BUDGET: Final = Meaning(_asked_budget, _budget_shown)
CRITERION: Final = Meaning(_asked_criterion, _criterion_shown)
NEURON_CRITERION: Final = Meaning(_asked_neuron_criterion, _neuron_criterion_shown)
SCOPE: Final = Meaning(_asked_scope, _scope_shown)
SCHEDULE: Final = by_value(_schedule_asked, str)
COUNTS: Final = Meaning(_asked_counts, _counts_shown)
LAYERS: Final = by_value(lambda text: text or (), ranges)
EXPERTS: Final = by_value(_groups, lambda experts: " ".join(experts_words(experts)))
OR_NONE: Final = by_value(lambda number: number or None, lambda number: number or 0)


# What buttons set.


def apply_shares(weights: Mapping[str, float]) -> None:
    """Blend with these weights, rounded to percent."""
    total = sum(weights.values())
    percents = {corpus: round(100 * weight / total) for corpus, weight in weights.items()}
    st.session_state.update(blend_controls(percents))


def apply_criterion(name: str) -> None:
    """Set the criterion and, for a member of the unified family, the toggles."""
    if name not in BASELINES:
        return
    exponents = get_criterion(name).exponents
    st.session_state.update(exponent_controls(exponents) if exponents else {"criterion": name})


def criterion_chosen() -> None:
    """Set the toggles of the criterion that was chosen."""
    apply_criterion(str(st.session_state["criterion"]))


def apply_exponents(exponents: tuple[int, int, int]) -> None:
    """Set the three toggles and switch to the unified family."""
    st.session_state.update(exponent_controls(exponents))


def carry_over(page: str) -> None:
    """Write the bound controls of the previous page to the URL of the new one.

    Called in the entry script before the controls are drawn. Streamlit 1.67 drops parameters of
    controls that the browser has not redrawn yet, but writes values set in the session.
    """
    if (last := st.session_state.get(_LAST, page)) != page:
        st.session_state[_BEFORE] = last
        for key in _CARRIED:
            if key in st.session_state:
                st.session_state[key] = st.session_state[key]
    st.session_state[_LAST] = page


def page_now() -> str:
    """URL path of the page that is drawn."""
    return str(st.session_state.get(_LAST, ""))


def page_before() -> str:
    """URL path of the page that was left for this one; empty for the first page, or for none."""
    return str(st.session_state.get(_BEFORE, ""))


def ask_page(name: str) -> None:
    """Have the entry script open the page at this URL path, in the next run; for callbacks."""
    st.session_state[_ASKED] = name


def asked_page() -> str:
    """The page that was asked for in this run; empty if none was."""
    return str(st.session_state.pop(_ASKED, ""))
