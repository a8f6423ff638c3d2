"""What a schedule is: budget, rooms and evidence -> experts removed from each layer."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from analysis.arrays import FloatArray
from analysis.families import MoELayer
from pruning.allocation import Allocation
from pruning.budget import Budget
from pruning.constraints import Constraints, Room

Need = Literal["saliency", "frequency", "counts"]


@dataclass(frozen=True)
class Spending:
    """A budget to spend on layers, and what must be respected."""

    layers: tuple[MoELayer, ...]
    budget: Budget
    constraints: Constraints = field(default_factory=Constraints)


@dataclass(frozen=True, eq=False)
class Evidence:
    """What schedules may look at.

    Args:
        saliency: (layers, most experts of a layer), higher = keep; NaN where there is no expert.
        frequency: the same for the number of routed tokens.
        counts: layer -> experts kept, from a file.
    """

    saliency: FloatArray | None = None
    frequency: FloatArray | None = None
    counts: Mapping[int, int] | None = None


@dataclass(frozen=True, eq=False)
class Turn:
    """One question to a schedule; what it answers is the number removed from each layer."""

    spending: Spending
    rooms: tuple[Room, ...]
    evidence: Evidence

    @property
    def sizes(self) -> list[int]:
        """Experts of each layer."""
        return [room.size for room in self.rooms]


@dataclass(frozen=True)
class Schedule:
    """A named way to spread a budget.

    Args:
        name: as on the command line.
        label: for people.
        summary: which layers lose more, in a few words.
        spread: the numbers removed, in order of the layers; they sum to the budget.
        needs: the evidence that it looks at.
        is_nested: a larger sparsity keeps a subset of what a smaller one keeps, where no constraint
            names a layer. Largest remainders do not ensure it: when more is to go, a layer may
            lose fewer (the Alabama paradox).
    """

    name: str
    label: str
    summary: str
    spread: Callable[[Turn], tuple[int, ...]]
    needs: frozenset[Need] = frozenset()
    is_nested: bool = True


def allocation_of(layers: Sequence[MoELayer], removed: Sequence[int]) -> Allocation:
    """The allocation that removes so many experts."""
    keep = tuple(layer.num_experts - gone for layer, gone in zip(layers, removed, strict=True))
    return Allocation(tuple(layers), keep)
