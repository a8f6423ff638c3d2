"""What a schedule is: budget, rooms and evidence -> experts removed from each layer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from pruning.plan.allocation import Allocation
from pruning.plan.constraints import Constraints, Room

if TYPE_CHECKING:
    from analysis.families.base import MoELayer
    from analysis.numbers.arrays import FloatArray
    from pruning.measures.curves import Sensitivity
    from pruning.plan.budget import Budget

Need = Literal["saliency", "frequency", "counts", "sensitivity"]


@dataclass(frozen=True)
class Spending:
    """A budget to spend on layers, under constraints."""

    layers: tuple[MoELayer, ...]
    budget: Budget
    constraints: Constraints = field(default_factory=Constraints)

    @property
    def cache_key(self) -> tuple[object, ...]:
        """Budget and constraints; the layers are the model's."""
        return (self.budget.to_dict(), self.constraints.to_dict())


@dataclass(frozen=True, eq=False)
class Evidence:
    """What schedules may look at."""

    # (layers, most experts of a layer), higher = keep; NaN where there is no expert.
    saliency: FloatArray | None = None
    frequency: FloatArray | None = None  # the same for the number of routed tokens
    counts: Mapping[int, int] | None = None  # layer -> experts kept, from a file
    sensitivity: Sensitivity | None = None  # curves of the order of the experts


@dataclass(frozen=True, eq=False)
class Turn:
    """One question to a schedule; the answer is the number removed from each layer."""

    spending: Spending
    rooms: tuple[Room, ...]
    evidence: Evidence

    @property
    def sizes(self) -> list[int]:
        """Experts of each layer."""
        return [room.size for room in self.rooms]


@dataclass(frozen=True)
class Schedule:
    """A named way to spread a budget."""

    name: str  # on the command line
    label: str  # for people
    summary: str  # which layers lose more, in a few words
    # Numbers removed, in order of the layers; they sum to the budget.
    spread: Callable[[Turn], tuple[int, ...]]
    needs: frozenset[Need] = frozenset()  # the evidence that it looks at
    # A larger sparsity keeps a subset of what a smaller one keeps, unless a constraint names a
    # layer. Not by largest remainders: of a larger budget a layer may lose fewer (Alabama paradox).
    is_nested: bool = True


def allocation_of(layers: Sequence[MoELayer], removed: Sequence[int]) -> Allocation:
    """The allocation that removes this many experts from each layer."""
    keep = tuple(layer.num_experts - count for layer, count in zip(layers, removed, strict=True))
    return Allocation(tuple(layers), keep)
