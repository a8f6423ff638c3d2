"""The controls of a plan and its spec, each from the other; shared by all pages."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Final, TypeVar

import streamlit as st

from analysis.corpora.spec import name_among
from analysis.corpora.weights import corpus_weight_text
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
from analysis.stats.columns import GATES
from app.choices import BLEND, Choices
from pruning.plan.bits import FORMATS
from pruning.plan.constraints import ranges
from pruning.plan.experts_per_token import possible_top_k
from pruning.plan.plan import EXPERT_GRANULARITY, NEURON_GRANULARITY
from pruning.plan.units import NeuronScope
from pruning.plan.widths import DEFAULT_MULTIPLE
from pruning.planning.choice import (
    EXPERT_BUDGETS,
    HAND,
    MULTIPLES,
    NEURON_BUDGETS,
    SCHEDULE_NAMES,
    SCOPES,
    SPARSITY_STEP,
    WIDTH_MODES,
    WIDTH_MULTIPLES,
    counts_in,
    counts_text,
    possible_percents,
    possible_shrinks,
    scopes_of,
)
from pruning.schedules import MEASURED
from pruning.search.store import SEARCH
from pruning.spec.plan_options import experts_words
from pruning.spec.spec import PlanSpec, spec_of

Value = TypeVar("Value")
Controls = Mapping[Any, Any]  # key -> value: the session itself, or what a link says

UNIFIED = "unified"
BITS: Final = "bits"  # in which evaluations simulate the plan; beside its spec, as a repair is
# Criteria outside the unified family.
OTHER = tuple(name for name, criterion in CRITERIA.items() if criterion.exponents is None)
# Criteria of experts: also unified variants without a name.
BASELINES = tuple(dict.fromkeys((*CRITERIA, *(unified(*each).name for each in RANKABLE))))
USUAL_BASELINE = "frequency"
EXPONENTS = ("b", "alpha", "beta")
EQUAL_SHARE = 50
MOST_LAMBDA = 100.0
# Controls that choose among a few values; the others are texts and numbers.
OPTIONS: Final[Mapping[str, Sequence[Any]]] = {
    "granularity": (EXPERT_GRANULARITY, NEURON_GRANULARITY),
    "gate": GATES,
    "schedule": SCHEDULE_NAMES,
    "multiple_of": MULTIPLES,
    "neurons": tuple(NEURON_CRITERIA),
    "neuron_scope": (*SCOPES, MEASURED),
    "width_mode": WIDTH_MODES,
    "width_multiple_of": WIDTH_MULTIPLES,
}
# The controls of a new session. That of the corpus begins with the first.
USUAL: Final[Controls] = {
    "granularity": EXPERT_GRANULARITY,
    "criterion": UNIFIED,
    **dict.fromkeys(EXPONENTS, 1),
    "gate": "applied",
    "budget": "sparsity",  # the field that the slider sets
    "sparsity": 50,
    "schedule": "uniform",
    "searched": "",
    "counts": "",
    "locked": "",
    "multiple_of": 1,
    "protect": "",
    "neurons": "heapr",
    "lambda": DEFAULT_LAMBDA,
    # Equal widths: the export is smaller and loads everywhere.
    "neuron_scope": str(NeuronScope.EXPERT),
    "width_mode": "uniform",
    "width_multiple_of": DEFAULT_MULTIPLE,
    "pin": "",
    "drop": "",
    "keep_super": False,
    "top_k": 0,  # as many experts per token as the model's own router selects
    BITS: "",  # of weights as the checkpoint has them
}
# Controls in which a person may write what is no plan.
TEXTS: Final = ("protect", "counts", "pin", "drop")
# Keys of other controls on every page, which the URL carries over as they are.
_CARRIED: Final = ("baseline", "expert", "repair")
_LAST: Final = "page.last"
_BEFORE: Final = "page.before"
_MOST_SAID: Final = 60  # characters of a value in a message


def one_of(value: object, options: Sequence[Value], usual: Value | None = None) -> Value:
    """Validate a widget value; an unknown one becomes `usual` or the first option."""
    first = options[0] if usual is None else usual
    return next((option for option in options if option == value), first)


def controls_on_page() -> dict[str, Any]:
    """The values of all controls."""
    return st.session_state.to_dict()  # `items` looks every key up by itself


def is_about_neurons() -> bool:
    """Whether the granularity is neurons."""
    return bool(st.session_state.get("granularity") == NEURON_GRANULARITY)


# The spec of controls.


def asked_spec(controls: Controls, model: MoEModel, corpora: Sequence[str]) -> PlanSpec:
    """The plan that controls ask for, with corpora and gate weights whether they rank or not.

    `corpora` are the calibrated ones. The usual value stands in for one that no control offers.
    """

    def chosen(key: str) -> Any:
        return one_of(controls.get(key), OPTIONS[key], USUAL[key])

    def text(key: str) -> str:
        return str(controls.get(key) or "").strip()

    by_neuron = chosen("granularity") == NEURON_GRANULARITY
    budgets = tuple(NEURON_BUDGETS if by_neuron else EXPERT_BUDGETS)
    percent, schedule = controls.get("sparsity"), chosen("schedule")
    values = {
        one_of(controls.get("budget"), budgets): f"{percent if type(percent) is int else 50}%",
        "granularity": chosen("granularity"),
        "corpora": _asked_corpora(controls, corpora),
        "gate": chosen("gate"),
        "multiple_of": chosen("multiple_of"),
        "protect": text("protect") or (),
        "keep_super": controls.get("keep_super") is True,
        "top_k": one_of(controls.get("top_k"), possible_top_k(model)) or None,
    }
    if by_neuron:
        name, scope = _neuron_criterion(controls), chosen("neuron_scope")
        possible = scope if scope in scopes_of(name) else USUAL["neuron_scope"]
        values |= {
            "criterion": name,
            **({"schedule": MEASURED} if scope == MEASURED else {"neuron_scope": str(possible)}),
            "width_mode": chosen("width_mode"),
            "width_multiple_of": chosen("width_multiple_of"),
            # Groups such as 3:5,7-9, with blanks or semicolons between them.
            "pin": tuple(text("pin").replace(";", " ").split()),
            "drop": tuple(text("drop").replace(";", " ").split()),
        }
    else:
        criterion = criterion_in(controls)
        values |= {
            "criterion": criterion.name if criterion else "",
            # Counts by hand and searches begin with uniform.
            "schedule": "uniform" if schedule in (HAND, SEARCH) else schedule,
        }
        if schedule == HAND and text("counts"):
            values["set"] = counts_in(text("counts"), model.layers)
    return spec_of(**values)


def criterion_in(controls: Controls) -> Criterion | None:
    """The criterion of experts that controls name; None for the constant variant (1, 0, 0)."""
    if (name := controls.get("criterion")) in OTHER:
        return get_criterion(name)
    exponents = tuple(controls.get(key) for key in EXPONENTS)
    variant = exponents if exponents in VARIANTS else (1, 1, 1)
    return unified(*variant) if variant in RANKABLE else None


def _neuron_criterion(controls: Controls) -> str:
    name = one_of(controls.get("neurons"), OPTIONS["neurons"], USUAL["neurons"])
    weight = controls.get("lambda")
    if name == "camera-p" and isinstance(weight, int | float) and 0 <= weight <= MOST_LAMBDA:
        return camera_p(float(weight)).name
    return str(name)


def corpus_options(corpora: Collection[str]) -> list[str]:
    """Corpora that can rank: each one, and the blend if there are several."""
    return [*corpora, BLEND] if len(corpora) > 1 else list(corpora)


def _asked_corpora(controls: Controls, corpora: Sequence[str]) -> tuple[str, ...]:
    if not corpora:
        return ()
    return corpora_of(one_of(controls.get("corpus"), corpus_options(corpora)), controls, corpora)


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


# The controls of a spec.


def controls_for(spec: PlanSpec, model: MoEModel, corpora: Sequence[str]) -> dict[str, Any]:
    """The controls that ask for a plan; a PlanError if they cannot ask for all of it."""
    ranking, limits, spread = spec.ranking, spec.limits, spec.spread
    budget, percent = _slider_step(spec, model)
    criterion = ranking.rule.name if ranking.criterion else ""
    controls = {
        **USUAL,
        **_corpus_controls(spec, model, corpora),
        "granularity": ranking.granularity,
        "gate": ranking.gate,
        "budget": budget,
        "sparsity": percent,
        "multiple_of": limits.multiple_of,
        "protect": ranges(limits.protect),
        "keep_super": limits.keep_super,
        "top_k": spec.budget.top_k or 0,
    }
    if spec.by_neuron:
        name, _, weight = criterion.partition(":")
        controls |= {
            "neurons": name,
            "lambda": float(weight or DEFAULT_LAMBDA),
            "neuron_scope": MEASURED if spread.is_measured else spread.neuron_scope,
            "width_mode": spec.budget.width_mode,
            "width_multiple_of": spec.budget.width_multiple_of,
            "pin": " ".join(experts_words(limits.pin)),
            "drop": " ".join(experts_words(limits.drop)),
        }
    else:
        exponents = get_criterion(criterion).exponents if criterion else (1, 0, 0)
        controls |= exponent_controls(exponents) if exponents else {"criterion": criterion}
        controls["schedule"] = spread.schedule
        if limits.set.keys() == {layer.index for layer in model.layers}:
            controls |= {"schedule": HAND, "counts": counts_text(limits.set)}
    shown = asked_spec(controls, model, corpora)
    wanted = {"criterion": criterion, budget: f"{percent}%", "corpora": shown.ranking.corpora}
    for name, words in spec.changed(**wanted).differences(shown).items():
        raise not_here(f"{name}: {' '.join(words)}", _offered(name, model))
    return controls


def not_here(what: str, offered: Iterable[object] = ()) -> PlanError:
    """The error for what a plan asks for and no control can; `offered` are values that one has."""
    others = ", ".join(map(str, offered))
    return PlanError(
        f"This page has no control for {what[:_MOST_SAID]}{others and f', but for {others}'}; make "
        "the plan with `moeprune prune` or `moeprune plan`, then open it here."
    )


def _offered(name: str, model: MoEModel) -> tuple[object, ...]:
    """The values of a field that a control has, if they are few."""
    if name == "top_k":
        return possible_top_k(model)[1:]
    if name == "criterion":
        return BASELINES
    return tuple(OPTIONS.get(name, ()))


def slider_steps(model: MoEModel, budget: str, *, by_neuron: bool) -> list[int]:
    """The percentages that the slider offers."""
    if by_neuron:  # all neurons can be pruned, but a router needs experts
        return list(range(0, 100, SPARSITY_STEP))
    return possible_shrinks(model) if budget == "shrink" else possible_percents(model)


def _slider_step(spec: PlanSpec, model: MoEModel) -> tuple[str, int]:
    """The field that gives the budget, and its step of the slider."""
    name, amount = next(iter(spec.budget.amounts.items()), ("a file", ""))
    if name in (NEURON_BUDGETS if spec.by_neuron else EXPERT_BUDGETS):
        percent = 100 * parse_sparsity(amount)
        if percent in slider_steps(model, name, by_neuron=spec.by_neuron):
            return name, int(percent)
        steps = slider_steps(model, name, by_neuron=spec.by_neuron)
        raise not_here(
            f"{name}: {amount}", (f"{steps[0]}% to {steps[-1]}% in steps of {SPARSITY_STEP}%",)
        )
    raise not_here(f"{name}: {amount}")


def _corpus_controls(
    spec: PlanSpec, model: MoEModel, corpora: Sequence[str]
) -> dict[str, str | int]:
    weights = {name_among(corpora, part.corpus): part.weight for part in spec.corpus_weights}
    if missing := sorted(weights.keys() - set(corpora)):
        raise PlanError(
            f"{model.name} has not been calibrated on {missing[0]}; start that on the Start page, "
            "or run the recipe with `moeprune prune`."
        )
    if len(weights) > 1:
        return blend_controls(dict.fromkeys(corpora, 0.0) | weights)
    return {"corpus": next(iter(weights or corpora), "")}


def blend_controls(weights: Mapping[str, float]) -> dict[str, str | int]:
    """The controls of a blend; weights that are no steps of a slider are rounded to some."""
    most, positive = max(weights.values()), {each for each in weights.values() if each}
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
