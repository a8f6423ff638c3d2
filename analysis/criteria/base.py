"""What a criterion is: statistics -> score, and which way the score is read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from analysis.arrays import FloatArray
from analysis.lazy import pd
from analysis.stats.samples import SamplePart
from analysis.stats.tables import GATES, Gate

# Columns of criteria that no gate convention changes, but that read what the router computes.
_READ_GATES = frozenset(("damage", "path_samples"))

StatsSource = Literal["routed", "weights", "none"]
Granularity = Literal["expert", "atomic"]
Columns = Callable[[Gate], tuple[str, ...]]


@dataclass(frozen=True)
class Criterion:
    """One way to say which experts, or which of their neurons, matter."""

    name: str  # permanent name, used in files and on the command line
    label: str  # name for people
    formula: str  # LaTeX of the score
    reference: str  # where it comes from
    source: StatsSource  # the statistics it reads: routed tokens, weights, or none
    columns: Columns  # columns of the table it reads, for a gate convention
    # (table, gate) -> the paper's number, float64, one per row, never NaN. The table is
    # `ExpertStats.table`, `WeightStats.per_expert()`, or for "none" only layer and expert. None
    # where whole experts are not scored.
    score: Callable[[pd.DataFrame, Gate], FloatArray] | None
    prune_larger: bool = False  # True where the paper prunes the LARGEST score
    exponents: tuple[int, int, int] | None = None  # (b, alpha, beta) of the unified family
    uses_gate: bool = False  # whether the gate convention changes the score
    # (table) -> the paper's number of every neuron, float64, one per row, never NaN. The table is
    # `NeuronStats.table`; for "weights" it has NORM_PRODUCT, for "none" only layer, expert and
    # neuron. None where neurons are not scored.
    neuron_score: Callable[[pd.DataFrame], FloatArray] | None = None
    within_layers: bool = False  # whether neurons of different layers are not comparable
    # (`ExpertStats.samples`) -> those of `columns` that are made from samples, one row per expert;
    # None where the table has all.
    from_samples: Callable[[Sequence[SamplePart]], pd.DataFrame] | None = None
    # (table) -> saliency, float64, one per row, where that is no function of the score: a place in
    # an order, which compares but does not add up.
    order: Callable[[pd.DataFrame], FloatArray] | None = None

    def saliency(self, score: FloatArray) -> FloatArray:
        """What ranks, where no `order` does: higher = keep."""
        return -score if self.prune_larger else score

    @property
    def granularities(self) -> tuple[Granularity, ...]:
        """What it ranks: whole experts, their neurons (atomic), or both."""
        ranked: dict[Granularity, object] = {"expert": self.score, "atomic": self.neuron_score}
        return tuple(name for name, score in ranked.items() if score is not None)

    @property
    def is_constant(self) -> bool:
        """(1, 0, 0) gives 1 to every routed expert, so it ranks nothing."""
        return self.exponents == (1, 0, 0)


def always(*columns: str) -> Columns:
    """`Criterion.columns` of a criterion that reads the same whatever the gate convention."""
    return lambda gate: columns


def numbers(table: pd.DataFrame, *columns: str) -> tuple[FloatArray, ...]:
    """Some columns as float64, a number a row."""
    return tuple(table[column].to_numpy(dtype=np.float64) for column in columns)


@dataclass(frozen=True, slots=True)
class Needs:
    """What a criterion reads.

    The paper's Table 1 has data, activations and router. Every criterion that needs data also needs
    the router's choices, which tokens go to which expert; `gates` is whether it reads more of the
    router than those.
    """

    data: bool  # a calibration corpus that the model runs on
    activations: bool  # outputs of the experts on it
    gates: bool  # gate weights of the router on it
    weights: bool  # the experts' own weights, which need no run


def needs_of(criterion: Criterion) -> Needs:
    """What a criterion reads, told from the columns of its table."""
    columns = criterion.columns(GATES[0]) if criterion.source == "routed" else ()
    return Needs(
        data=criterion.source == "routed",
        # More than counts and gate weights: something of the outputs.
        activations=any(n != "num_tokens" and not n.endswith("_f0") for n in columns),
        gates=criterion.uses_gate or not _READ_GATES.isdisjoint(columns),
        weights=criterion.source == "weights",
    )
