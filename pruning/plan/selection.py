"""How many experts each layer keeps, an allocation, and which by a ranking; which neurons stay."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TYPE_CHECKING

from analysis.errors import PlanError
from analysis.files.shipped import tool_version
from analysis.lazy import np, pd
from pruning.plan.constraints import Constraints
from pruning.plan.kept import KeptNeurons, check_kept, count_problem, ordered_neurons
from pruning.plan.plan import Provenance, PruningPlan
from pruning.plan.units import Units, expert_units, open_units

if TYPE_CHECKING:
    from analysis.families.base import MoELayer
    from analysis.model.moe_model import ModelRef
    from analysis.numbers.arrays import FloatArray


@dataclass(frozen=True, slots=True)
class Allocation:
    """Experts kept in each layer: top_k <= keep <= num_experts, the same number in each group."""

    layers: tuple[MoELayer, ...]  # the sparse layers, in decoder order
    keep: tuple[int, ...]  # experts kept, one number for each of them

    def __post_init__(self) -> None:
        if len(self.layers) != len(self.keep):
            raise ValueError(f"{len(self.layers)} layers but {len(self.keep)} counts")
        for layer, keep in zip(self.layers, self.keep, strict=True):
            if problem := count_problem(layer, keep):
                raise PlanError(problem)

    @property
    def counts(self) -> dict[int, int]:
        """Layer -> experts that it keeps."""
        pairs = zip(self.layers, self.keep, strict=True)
        return {layer.index: keep for layer, keep in pairs}

    @property
    def removed(self) -> tuple[int, ...]:
        """Experts removed from each layer, in order of the layers."""
        pairs = zip(self.layers, self.keep, strict=True)
        return tuple(layer.num_experts - keep for layer, keep in pairs)

    @property
    def ratios(self) -> tuple[Fraction, ...]:
        """r_l, the fraction removed from each layer, exact."""
        pairs = zip(self.layers, self.removed, strict=True)
        return tuple(Fraction(count, layer.num_experts) for layer, count in pairs)


def allocation_of(layers: Sequence[MoELayer], removed: Sequence[int]) -> Allocation:
    """The allocation that removes this many experts from each layer."""
    keep = tuple(layer.num_experts - count for layer, count in zip(layers, removed, strict=True))
    return Allocation(tuple(layers), keep)


def select_experts(
    ranking: pd.DataFrame,
    allocation: Allocation,
    *,
    model: ModelRef,
    provenance: Provenance | None = None,
    constraints: Constraints | None = None,
) -> PruningPlan:
    """Keep the first experts of each layer's ranking, the same number in each of its groups.

    The ranking has columns layer, expert, rank; rank 0 is the first to keep in its layer. Layers
    outside the allocation are ignored. Pinned experts stay and dropped ones go whatever their rank.
    """
    limits, layers = constraints or Constraints(), allocation.layers
    by_layer = {int(str(layer)): rows for layer, rows in ranking.groupby("layer")}
    units = replace(
        open_units(layers),
        groups=tuple(layer.num_groups for layer in layers),
        limits=limits,
        saliency=tuple(-_ranks(by_layer.get(layer.index, ranking[:0]), layer) for layer in layers),
    )
    kept: dict[int, tuple[int, ...]] = {}
    for row, (layer, removed) in enumerate(zip(layers, allocation.removed, strict=True)):
        stays = kept[layer.index] = units.kept(row, removed)
        pinned = limits.pinned.get(layer.index, frozenset())
        dropped = limits.dropped.get(layer.index, frozenset())
        if pinned - set(stays) or dropped & set(stays):
            raise PlanError(
                f"Layer {layer.index} keeps {len(stays)} of {layer.num_experts} experts, which "
                f"leaves no room for its {len(pinned)} pinned and {len(dropped)} dropped ones."
            )
    return PruningPlan(model, kept, provenance or Provenance(tool_version=tool_version()))


def _ranks(rows: pd.DataFrame, layer: MoELayer) -> FloatArray:
    """(experts,) rank of each expert of a layer."""
    ids, ranks = rows["expert"].tolist(), rows["rank"].tolist()
    if sorted(ids) != list(range(layer.num_experts)):
        raise PlanError(
            f"The ranking holds {len(ids)} experts of layer {layer.index}, but it should "
            f"rank each of its {layer.num_experts} experts once."
        )
    if len(set(ranks)) != len(ranks) or any(rank != rank for rank in ranks):
        raise PlanError(f"The ranking of layer {layer.index} has equal or missing ranks.")
    return np.array(ranks, dtype=np.float64)[np.argsort(ids)]


def kept_experts(
    layers: Sequence[MoELayer], constraints: Constraints
) -> dict[int, tuple[int, ...]]:
    """Layer -> experts that stay, for the layers that lose whole experts in a plan of neurons."""
    if constraints.fixed or constraints.locked:
        raise PlanError(
            "Layers cannot be set or locked by hand in a plan of neurons; protect layers, pin or "
            "drop experts, or name the neurons that stay in a file."
        )
    # The multiple and the floor count neurons here; all other constraints hold for experts too.
    expert_units(layers, replace(constraints, multiple_of=1, floor=0))
    kept = {}
    for layer in layers:
        if dropped := constraints.dropped.get(layer.index):
            kept[layer.index] = tuple(e for e in range(layer.num_experts) if e not in dropped)
            check_kept(layer, kept[layer.index])
    return kept


def neurons_left(
    units: Units, removed: Sequence[int], experts: Mapping[int, Sequence[int]] | None = None
) -> KeptNeurons:
    """The neurons that stay in every expert that loses some.

    `experts` are those that stay in layers that lose whole experts; the others are left out.
    """
    kept: dict[int, dict[int, tuple[int, ...]]] = {}
    for row, ((layer, expert), count) in enumerate(zip(units.experts, removed, strict=True)):
        if count and expert in (experts or {}).get(layer, (expert,)):
            kept.setdefault(layer, {})[expert] = units.kept(row, count)
    return ordered_neurons(kept)


def widths_left(
    units: Units, removed: Sequence[int], experts: Mapping[int, Sequence[int]] | None = None
) -> dict[int, dict[int, int]]:
    """Layer -> expert that stays -> neurons it keeps; `experts` as in `neurons_left`."""
    widths: dict[int, dict[int, int]] = {}
    for (layer, expert), size, count in zip(units.experts, units.sizes, removed, strict=True):
        if expert in (experts or {}).get(layer, (expert,)):
            widths.setdefault(layer, {})[expert] = size - count
    return widths
