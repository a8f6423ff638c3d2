"""The feasible set: all ways to spend a budget within the bounds of the layers."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate

import numpy as np

from pruning.plan.budget import Budget
from pruning.plan.selection import Allocation
from pruning.plan.units import Removed, Units, check_total, expert_units
from pruning.schedules import PATTERNS, allocate

_WORD_BITS = 64


@dataclass(frozen=True)
class Space:
    """The allocations r with sum r = B that every layer can lose (Algorithm 1, line 1)."""

    units: Units  # what each layer may lose
    total: int  # B, experts removed from all layers together

    def __post_init__(self) -> None:
        check_total(self.total, self.units)

    @cached_property
    def most_steps(self) -> tuple[int, ...]:
        """Steps between the least and the most that each layer may lose."""
        ends = zip(self.units.least, self.units.most, strict=True)
        return tuple((most - least) // self.units.step for least, most in ends)

    def holds(self, removed: Sequence[int]) -> bool:
        """Whether this allocation is feasible."""
        return sum(removed) == self.total and not self.units.misfits(removed)

    def steps_of(self, removed: Sequence[int]) -> Removed:
        """Steps above the least removal of each layer."""
        pairs = zip(removed, self.units.least, strict=True)
        return tuple((count - least) // self.units.step for count, least in pairs)

    def removed_by(self, steps: Sequence[int]) -> Removed:
        """The inverse of `steps_of`."""
        pairs = zip(self.units.least, steps, strict=True)
        return tuple(least + self.units.step * count for least, count in pairs)

    @cached_property
    def num_steps(self) -> int:
        """Steps of all layers together."""
        return (self.total - sum(self.units.least)) // self.units.step

    @cached_property
    def _completions(self) -> tuple[tuple[int, ...], ...]:
        """[l][s]: number of ways in which the layers l.. take s steps together; exact integers."""
        ways = (1, *([0] * self.num_steps))
        table = [ways]
        for most in reversed(self.most_steps):
            # A window sum: the layer takes 0..most steps, later layers the rest.
            up_to = (0, *accumulate(ways))
            ways = tuple(up_to[s + 1] - up_to[max(0, s - most)] for s in range(self.num_steps + 1))
            table.append(ways)
        return tuple(reversed(table))

    @property
    def size(self) -> int:
        """Number of feasible allocations."""
        return self._completions[0][self.num_steps]

    def draw(self, rng: np.random.Generator) -> Removed:
        """A feasible allocation, uniformly at random, exactly."""
        steps, steps_left = [], self.num_steps
        for layer in range(len(self.units.sizes)):
            after = self._completions[layer + 1]
            # Taking s steps here leaves after[left - s] completions; draw one of them all.
            chosen = integer_below(rng, self._completions[layer][steps_left])
            layer_steps = 0
            while chosen >= after[steps_left - layer_steps]:
                chosen -= after[steps_left - layer_steps]
                layer_steps += 1
            steps.append(layer_steps)
            steps_left -= layer_steps
        return self.removed_by(steps)


def integer_below(rng: np.random.Generator, limit: int) -> int:
    """A uniform integer in [0, limit), even if the limit exceeds a machine word."""
    bits = (limit - 1).bit_length()
    words = -(-bits // _WORD_BITS)
    while True:
        number = 0
        for word in rng.integers(0, 1 << _WORD_BITS, size=words, dtype=np.uint64):
            number = number << _WORD_BITS | int(word)
        number >>= words * _WORD_BITS - bits
        if number < limit:
            return number


def space_of(units: Units, budget: Budget, scheduled: Allocation) -> Space:
    """The feasible set of a budget; locked layers keep the counts of the schedule."""
    limits, counts = units.limits, scheduled.counts
    fixed = {**limits.fixed, **{index: counts[index] for index in limits.locked}}
    settled = replace(limits, fixed=fixed, locked=frozenset())
    return Space(expert_units(units.layers, settled), budget.total)


def seeds_of(space: Space, budget: Budget, name: str, scheduled: Allocation) -> dict[str, Removed]:
    """Schedule -> allocation: uniform, early, middle, late, and `scheduled` by its name."""
    # Without shares of single layers, uniform goes by largest remainder, which always works.
    even = budget
    if budget.floors and not space.holds(budget.floors):
        even = replace(budget, floors=())
    seeds = {"uniform": allocate("uniform", space.units, even).removed}
    seeds |= {pattern: allocate(pattern, space.units, budget).removed for pattern in PATTERNS}
    return {**seeds, name: scheduled.removed} if name not in seeds else seeds
