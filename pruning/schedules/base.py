"""What a schedule is: units, a budget and evidence -> what each row of the units loses."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from pruning.plan.allocation import Allocation

if TYPE_CHECKING:
    from analysis.families.base import MoELayer
    from analysis.numbers.arrays import FloatArray
    from pruning.measures.curves import Sensitivity
    from pruning.plan.budget import Budget
    from pruning.plan.units import Removed, Units

Need = Literal["saliency", "frequency", "counts", "sensitivity"]


@dataclass(frozen=True, eq=False)
class Evidence:
    """What schedules may look at."""

    # (layers, most experts of a layer), higher = keep; NaN where there is no expert.
    saliency: FloatArray | None = None
    frequency: FloatArray | None = None  # the same for the number of routed tokens
    counts: Mapping[int, int] | None = None  # layer -> experts kept, from a file
    sensitivity: Sensitivity | None = None  # curves of the order of the experts


@dataclass(frozen=True)
class Schedule:
    """A named way to spread a budget."""

    name: str  # on the command line
    label: str  # for people
    summary: str  # which layers lose more, in a few words
    # What each row loses, which sums to the budget.
    spread: Callable[[Units, Budget, Evidence], Removed]
    needs: frozenset[Need] = frozenset()  # the evidence that it looks at
    # A larger sparsity keeps a subset of what a smaller one keeps, unless a constraint names a
    # layer. Not by largest remainders: of a larger budget a layer may lose fewer (Alabama paradox).
    is_nested: bool = True


def allocation_of(layers: Sequence[MoELayer], removed: Sequence[int]) -> Allocation:
    """The allocation that removes this many experts from each layer."""
    keep = tuple(layer.num_experts - count for layer, count in zip(layers, removed, strict=True))
    return Allocation(tuple(layers), keep)
