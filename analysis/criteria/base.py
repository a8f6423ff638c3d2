"""What a criterion is: statistics -> score, and the direction of the score."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from analysis.lazy import pd
from analysis.numbers.arrays import FloatArray
from analysis.stats.columns import GATES, Gate
from analysis.stats.samples import SamplePart

# Columns that depend on the router's output, but not on the gate convention.
_READ_GATES = frozenset(("damage", "path_samples"))

StatsSource = Literal["routed", "weights", "none"]
Granularity = Literal["expert", "neuron"]
Columns = Callable[[Gate], tuple[str, ...]]


@dataclass(frozen=True)
class Criterion:
    """A measure of how much experts, or their neurons, matter."""

    name: str  # permanent name, used in files and on the command line
    label: str  # displayed name
    formula: str  # LaTeX of the score
    reference: str  # its source
    source: StatsSource  # the statistics it reads: routed tokens, weights, or none
    columns: Columns  # gate convention -> columns of the table that it reads
    # (table, gate) -> the paper's number, float64, one per row, never NaN. The table is
    # `ExpertStats.table`, `WeightStats.per_expert()`, or for "none" only layer and expert. None
    # if whole experts are not scored.
    score: Callable[[pd.DataFrame, Gate], FloatArray] | None
    prune_larger: bool = False  # whether the paper prunes the LARGEST scores
    exponents: tuple[int, int, int] | None = None  # (b, alpha, beta) of the unified family
    uses_gate: bool = False  # whether the gate convention changes the score
    # (table) -> the paper's number of every neuron, float64, one per row, never NaN. The table is
    # `NeuronStats.table`; for "weights" it has NORM_PRODUCT, for "none" only layer, expert and
    # neuron. None if neurons are not scored.
    neuron_score: Callable[[pd.DataFrame], FloatArray] | None = None
    within_layers: bool = False  # whether neurons compare only within a layer
    # (`ExpertStats.samples`) -> those of `columns` that are made from samples, one row per expert;
    # None if the table has all.
    from_samples: Callable[[Sequence[SamplePart]], pd.DataFrame] | None = None
    # (table) -> saliency, float64, one per row, if that is no function of the score but a place in
    # an order, which compares but does not add up.
    order: Callable[[pd.DataFrame], FloatArray] | None = None

    @property
    def cache_key(self) -> str:
        """The name."""
        return self.name

    def saliency(self, score: FloatArray) -> FloatArray:
        """Saliency of a score if there is no `order`: higher = keep."""
        return -score if self.prune_larger else score

    @property
    def is_constant(self) -> bool:
        """Whether it is (1, 0, 0), which gives every routed expert the score 1."""
        return self.exponents == (1, 0, 0)


def always(*columns: str) -> Columns:
    """`Criterion.columns` of a criterion that reads the same for any gate convention."""
    return lambda gate: columns


def numbers(table: pd.DataFrame, *columns: str) -> tuple[FloatArray, ...]:
    """Some columns as float64 arrays."""
    return tuple(table[column].to_numpy(dtype=np.float64) for column in columns)


@dataclass(frozen=True, slots=True)
class Needs:
    """What a criterion reads, as in the paper's Table 1 (data, activations, router).

    Every criterion that needs data also needs the router's choices; `gates` is whether it reads
    more of the router.
    """

    data: bool  # a calibration corpus that the model runs on
    activations: bool  # outputs of the experts on it
    gates: bool  # gate weights of the router on it
    weights: bool  # the experts' own weights, without a run


def needs_of(criterion: Criterion) -> Needs:
    """What a criterion reads, inferred from the columns of its table."""
    columns = criterion.columns(GATES[0]) if criterion.source == "routed" else ()
    return Needs(
        data=criterion.source == "routed",
        # Columns other than counts and sums of gate weights depend on the outputs.
        activations=any(n != "num_tokens" and not n.endswith("_f0") for n in columns),
        gates=criterion.uses_gate or not _READ_GATES.isdisjoint(columns),
        weights=criterion.source == "weights",
    )
