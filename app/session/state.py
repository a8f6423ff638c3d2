"""The state that all pages share: widgets of the entry script, bound to the URL, validated here."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import streamlit as st

from analysis.criteria import CRITERIA, VARIANTS, Criterion, get_criterion
from analysis.errors import CriterionError
from analysis.model import MoEModel
from analysis.stats.store import Run
from analysis.stats.tables import GATES, Gate
from app.session.data import routed_runs, shown_model, shown_stats_dir
from pruning.planning.comparing import CompareRequest
from pruning.planning.ranking import criterion_badge
from pruning.requests.base import SelectRequest

UNIFIED = "unified"
# Criteria besides the unified family, in the order of the menu.
OTHER = (
    "aimer",
    "magnitude",
    "mone",
    "heapr",
    "camera-p",
    "pathfinder",
    "damage",
    "hoyer",
    "random",
)
CRITERION_OPTIONS = (UNIFIED, *OTHER)
PRESETS = tuple(CRITERIA)
# The corpus that stands for a mix of all; no file is called so.
BLEND = "(blend)"
EQUAL_SHARE = 50
# The two recipes that a page is about, in the session's state.
RECIPES = "shown_recipes"
# Declared to each widget as well: it is where the browser's Back button leads to.
DEFAULTS: dict[str, Any] = {
    "criterion": UNIFIED,
    "baseline": "frequency",
    "b": 1,
    "alpha": 1,
    "beta": 1,
    "gate": "applied",
    "sparsity": 50,
}


@dataclass(frozen=True, eq=False)
class View:
    """What the shared controls say.

    Args:
        model: the model on screen.
        runs: its best calibration run for each corpus.
        corpus: the corpus whose statistics rank, or BLEND; empty when there are none.
        shares: share of each corpus in the blend, not normalised.
        sparsity_percent: 0..95 in steps of 5.
        exponents: the three toggles, also when they are not in use.
        criterion: what ranks; None for (1, 0, 0), which cannot.
        gate: gate convention.
    """

    model: MoEModel
    runs: dict[str, Run]
    corpus: str
    shares: Mapping[str, int]
    sparsity_percent: int
    exponents: tuple[int, int, int]
    criterion: Criterion | None
    gate: Gate

    @property
    def sparsity(self) -> str:
        """As the command line writes it."""
        return f"{self.sparsity_percent}%"

    @property
    def weights(self) -> dict[str, float]:
        """Weight of every corpus in what ranks: shares of the blend, or 1 for the one chosen."""
        if self.corpus != BLEND:
            return {corpus: float(corpus == self.corpus) for corpus in self.runs}
        return {corpus: float(self.shares[corpus]) for corpus in self.runs}

    @property
    def corpora(self) -> tuple[str, ...]:
        """As --corpus takes them; what has no weight is left out."""
        return corpora_of(self.corpus, self.weights)

    def source_of(self, criterion: Criterion) -> str:
        """Where a criterion's numbers come from, in a few words."""
        if criterion.source != "routed":
            return criterion_badge(criterion)
        return " + ".join(self.corpora)

    def about(self) -> str:
        """Model, runs and sparsity, for the provenance of a figure."""
        runs = ", ".join(run.manifest.run_id for run in self.runs.values())
        facts = (f"{self.model.name} {self.model.identity[:8]}", runs, f"sparsity {self.sparsity}")
        return " | ".join(filter(None, facts))

    def request(self, criterion: Criterion) -> SelectRequest:
        """The selection that the command line would be given."""
        routed = criterion.source == "routed"
        return SelectRequest(
            model=shown_model(self.model),
            criterion=criterion.name,
            corpora=self.corpora if routed else (),
            gate=self.gate if criterion.uses_gate else "applied",
            sparsity=self.sparsity,
            stats_dir=shown_stats_dir(),
        )


def corpora_of(corpus: str, weights: Mapping[str, float]) -> tuple[str, ...]:
    """`corpus` as --corpus takes it; a blend as CORPUS:WEIGHT, without those of no weight."""
    if corpus != BLEND:
        return (corpus,) if corpus else ()
    return tuple(f"{name}:{weight:g}" for name, weight in weights.items() if weight > 0)


def share_key(corpus: str) -> str:
    """Key of a blend's slider, and its name in the address."""
    return f"share.{corpus}"


def chosen_shares(corpora: Iterable[str]) -> dict[str, int]:
    """What the sliders of the blend say; equal shares where all are 0 or none was drawn yet."""
    shares = {}
    for corpus in corpora:
        given = st.session_state.get(share_key(corpus), EQUAL_SHARE)
        shares[corpus] = given if isinstance(given, int) and 0 <= given <= 100 else EQUAL_SHARE
    return shares if any(shares.values()) else dict.fromkeys(shares, EQUAL_SHARE)


def apply_shares(weights: Mapping[str, float]) -> None:
    """Blend with these weights, rounded to what the sliders can say."""
    st.session_state["corpus"] = BLEND
    total = sum(weights.values())
    for corpus, weight in weights.items():
        st.session_state[share_key(corpus)] = round(100 * weight / total)


def apply_preset(name: str | None) -> None:
    """Set the criterion and, for a member of the unified family, the toggles."""
    if name not in CRITERIA:
        return
    exponents = CRITERIA[name].exponents
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


def apply_pair(criterion: str, baseline: str) -> None:
    """Show two criteria side by side."""
    apply_preset(criterion)
    st.session_state["baseline"] = baseline


def use_unified() -> None:
    """A toggle was touched: the unified family is meant."""
    st.session_state["criterion"] = UNIFIED


def chosen_criterion() -> Criterion | None:
    """The criterion of the controls; None for the constant variant (1, 0, 0)."""
    name = _value("criterion")
    if name in OTHER:
        return get_criterion(name)
    try:
        return get_criterion(",".join(map(str, exponents())))
    except CriterionError:
        return None


def with_choices(view: View) -> View:
    """The view with what the criterion controls say, once drawn: only then has the URL set them."""
    criterion = chosen_criterion()
    # The same corpora; of each, the run that has what the criterion reads.
    runs = routed_runs(view.model, criterion)
    return replace(view, runs=runs, exponents=exponents(), criterion=criterion, gate=chosen_gate())


def chosen_baseline() -> Criterion:
    """The criterion beside."""
    name = _value("baseline")
    return CRITERIA[name if name in CRITERIA else DEFAULTS["baseline"]]


def exponents() -> tuple[int, int, int]:
    """(b, alpha, beta) of the toggles; all as at first if they are out of their range."""
    given = (_value("b"), _value("alpha"), _value("beta"))
    return given if given in VARIANTS else (1, 1, 1)


def _value(key: str) -> Any:
    """What a control says; its first value where it was not drawn yet."""
    return st.session_state.get(key, DEFAULTS[key])


def chosen_gate() -> Gate:
    """The gate convention of the controls."""
    gate = _value("gate")
    return gate if gate in GATES else "applied"


def shown_recipes() -> CompareRequest | None:
    """The recipes that the page is about; None where it is about none."""
    found = st.session_state.get(RECIPES)
    return found if isinstance(found, CompareRequest) else None
