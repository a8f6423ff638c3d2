"""State shared by all pages: widgets of the entry script, bound to the URL, validated here."""

from collections.abc import Iterable, Mapping
from typing import Any, Final

import streamlit as st

from analysis.criteria import CRITERIA, RANKABLE, VARIANTS, Criterion, get_criterion, unified
from analysis.errors import CriterionError
from analysis.stats.choose import corpus_weight_text
from analysis.stats.tables import GATES, Gate
from app.choices import BLEND, Choices
from pruning.spec import spec_of

UNIFIED = "unified"
# Criteria outside the unified family.
OTHER = tuple(name for name, criterion in CRITERIA.items() if criterion.exponents is None)
CRITERION_OPTIONS = (UNIFIED, *OTHER)
PRESETS = tuple(CRITERIA)
PAIR = ("aimer", "magnitude")  # the two criteria that read weights only, side by side
# Baselines: also unified variants without a name.
BASELINES = tuple(dict.fromkeys((*CRITERIA, *(unified(*each).name for each in RANKABLE))))
EQUAL_SHARE = 50
# Also declared to each widget: the browser's Back button restores these.
DEFAULTS: dict[str, Any] = {
    "criterion": UNIFIED,
    "baseline": "frequency",
    "b": 1,
    "alpha": 1,
    "beta": 1,
    "gate": "applied",
    "sparsity": 50,
}
# Keys of the controls on every page; blend sliders start with "share.".
_KEYS: Final = frozenset(
    (
        *("granularity", "corpus", "sparsity", "budget", "criterion", "b", "alpha", "beta", "gate"),
        *("baseline", "neurons", "lambda", "scope", "unit", "width", "width_multiple"),
        *("neuron_multiple", "schedule", "searched", "multiple", "protect", "counts", "locked"),
        *("pin", "drop", "expert", "repair"),
    )
)
_LAST: Final = "page.last"


def corpora_of(corpus: str, weights: Mapping[str, float]) -> tuple[str, ...]:
    """`corpus` in the form of --corpus; a blend as CORPUS:WEIGHT, without zero weights."""
    if corpus != BLEND:
        return (corpus_weight_text(corpus),) if corpus else ()
    return tuple(f"{name}:{weight:g}" for name, weight in weights.items() if weight > 0)


def share_key(corpus: str) -> str:
    """Key of a blend slider and of its URL parameter."""
    return f"share.{corpus}"


def chosen_shares(corpora: Iterable[str]) -> dict[str, int]:
    """Shares of the blend sliders; equal if all are 0 or none was drawn yet."""
    shares = {}
    for corpus in corpora:
        share = st.session_state.get(share_key(corpus), EQUAL_SHARE)
        shares[corpus] = share if isinstance(share, int) and 0 <= share <= 100 else EQUAL_SHARE
    return shares if any(shares.values()) else dict.fromkeys(shares, EQUAL_SHARE)


def apply_shares(weights: Mapping[str, float]) -> None:
    """Blend with these weights, rounded to slider steps."""
    st.session_state["corpus"] = BLEND
    total = sum(weights.values())
    for corpus, weight in weights.items():
        st.session_state[share_key(corpus)] = round(100 * weight / total)


def apply_preset(name: str | tuple[str, str] | None) -> None:
    """Set the criterion and, for a member of the unified family, the toggles."""
    if isinstance(name, tuple):
        name, st.session_state["baseline"] = name
    if name not in BASELINES:
        return
    exponents = get_criterion(name).exponents
    if exponents is None:
        st.session_state["criterion"] = name
        return
    st.session_state["criterion"] = UNIFIED
    apply_exponents(exponents)


def apply_exponents(exponents: tuple[int, int, int]) -> None:
    """Set the three toggles and switch to the unified family."""
    st.session_state["criterion"] = UNIFIED
    for key, value in zip(("b", "alpha", "beta"), exponents, strict=True):
        st.session_state[key] = value


def chosen_criterion() -> Criterion | None:
    """The criterion of the controls; None for the constant variant (1, 0, 0)."""
    name = _value("criterion")
    if name in OTHER:
        return get_criterion(name)
    try:
        return get_criterion(",".join(map(str, exponents())))
    except CriterionError:
        return None


def page_choices(corpora: tuple[str, ...], percent: int) -> Choices:
    """What the controls say, and those of the sidebar: `corpora` in the form of --corpus."""
    criterion, gate = chosen_criterion(), chosen_gate()
    routed = criterion is not None and criterion.source == "routed"
    uses_gate = criterion is not None and criterion.uses_gate
    spec = spec_of(
        criterion=criterion.name if criterion else "",
        corpora=corpora if routed else (),
        gate=gate if uses_gate else "applied",
        sparsity=f"{percent}%",
    )
    return Choices(spec, chosen_baseline(), corpora, gate)


def chosen_baseline() -> Criterion:
    """The baseline criterion."""
    name = _value("baseline")
    return get_criterion(name if name in BASELINES else DEFAULTS["baseline"])


def exponents() -> tuple[int, int, int]:
    """(b, alpha, beta) of the toggles; the defaults if out of range."""
    toggles = (_value("b"), _value("alpha"), _value("beta"))
    return toggles if toggles in VARIANTS else (1, 1, 1)


def _value(key: str) -> Any:
    return st.session_state.get(key, DEFAULTS[key])


def chosen_gate() -> Gate:
    """The gate convention of the controls."""
    gate = _value("gate")
    return gate if gate in GATES else "applied"


def keep_in_address(page: str) -> None:
    """Carry the control values of the previous page over to the URL of the new one.

    Called in the entry script before the controls are drawn. Streamlit 1.67 drops parameters of
    controls that the browser has not redrawn yet, but writes values set in the session.
    """
    if st.session_state.get(_LAST, page) != page:
        for key in map(str, tuple(st.session_state)):
            if key in _KEYS or key.startswith("share."):
                st.session_state[key] = st.session_state[key]
    st.session_state[_LAST] = page
