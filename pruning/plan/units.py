"""Units: the experts or neurons of which a budget goes, in rows, with what each row can lose."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from fractions import Fraction
from functools import cached_property
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Literal

from analysis.cache_keys import IdentityKey
from analysis.errors import PlanError, unknown_name
from analysis.lazy import np
from analysis.numbers.sparsity import as_percent, num_removed, parse_sparsity
from pruning.plan.constraints import Constraints, check_names, kept_bounds, kept_widths

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from analysis.families.base import MoELayer
    from analysis.numbers.arrays import FloatArray, NeuronScores

Removed = tuple[int, ...]  # units that each row loses, in order of the rows
ExpertKey = tuple[int, int]  # decoder index and id of an expert
EXPERTS: Literal["experts"] = "experts"
NEURONS: Literal["neurons"] = "neurons"


class NeuronScope(StrEnum):
    """Which neurons share what goes: the rows of a pool."""

    EXPERT = "expert"  # the same number in every expert: one width, no zeros
    LAYER = "layer"  # HEAPr-L
    GLOBAL = "global"  # HEAPr-G


def parse_scope(text: str) -> NeuronScope:
    """The scope of this name."""
    names = [str(scope) for scope in NeuronScope]
    if text not in names:
        raise PlanError(unknown_name("scope of a budget of neurons", text, names))
    return NeuronScope(text)


@dataclass(frozen=True)
class Units:
    """Rows of like units: a row is a layer of experts, or an expert of neurons.

    A row loses least, least + step, ... or most of its units, the least salient first; a ValueError
    if most is none of these. What a pool of rows loses together comes from the row where the next
    step has the least saliency.
    """

    sizes: tuple[int, ...]  # units of each row
    least: Removed
    most: Removed
    step: int = 1  # the same in all rows, so that they can trade
    what: Literal["experts", "neurons"] = EXPERTS
    pools: tuple[int, ...] = ()  # rows of each pool, which follow each other; empty: each row alone
    # Of experts, in order of the rows: the layer, and how many groups of neighbours lose alike.
    layers: tuple[MoELayer, ...] = ()
    groups: tuple[int, ...] = ()  # empty: one in each row
    experts: tuple[ExpertKey, ...] = ()  # of neurons: the expert of each row
    limits: Constraints = field(default_factory=Constraints)  # that the bounds follow from
    # Of each row, higher = keep; empty if nothing ranks them yet.
    saliency: tuple[FloatArray, ...] = field(default=(), compare=False, repr=False)

    def __post_init__(self) -> None:
        if self.step > 1:  # of neurons there are thousands of rows
            for least, most in zip(self.least, self.most, strict=True):
                if (most - least) % self.step:
                    raise ValueError(f"{least} and {most} are not whole steps of {self.step} apart")

    @cached_property
    def cache_key(self) -> tuple[object, ...]:
        """The limits, as sizes are the model's; ranked ones are told apart by a number."""
        number = IdentityKey().cache_key if self.saliency else None
        return self.what, self.pools, self.limits.to_dict(), number

    @property
    def size(self) -> int:
        """Units of all rows."""
        return sum(self.sizes)

    @property
    def totals(self) -> range:
        """Every number that can go in all."""
        return range(sum(self.least), sum(self.most) + 1, self.step)

    def misfits(self, removed: Sequence[int]) -> list[int]:
        """Positions of the rows that cannot lose exactly this many."""
        rows = enumerate(zip(removed, self.least, self.most, strict=True))
        return [
            position
            for position, (count, least, most) in rows
            if not least <= count <= most or (count - least) % self.step
        ]

    def rounded_down(self, removed: Sequence[int]) -> Removed:
        """The nearest numbers at or below that can go; out of bounds as they are."""
        return tuple(
            count - (count - least) % self.step if least <= count <= most else count
            for count, least, most in zip(removed, self.least, self.most, strict=True)
        )

    def nearest(self, removed: Sequence[int]) -> Removed:
        """The nearest numbers that can go; of a tie the smaller, which keeps more."""
        numbers = []
        for count, least, most in zip(removed, self.least, self.most, strict=True):
            within = min(max(count, least), most)
            below = within - (within - least) % self.step
            above = below + self.step
            numbers.append(above if above - within < within - below else below)
        return tuple(numbers)

    @cached_property
    def runs(self) -> list[slice]:
        """The rows of each pool."""
        ends = accumulate(self.pools or (1,) * len(self.sizes), initial=0)
        return [slice(*ends) for ends in pairwise(ends)]

    @cached_property
    def by_pool(self) -> Units:
        """The same with one row for each pool."""
        if not self.pools:
            return self
        sizes, least, most = (
            tuple(sum(column[run]) for run in self.runs)
            for column in (self.sizes, self.least, self.most)
        )
        return Units(sizes, least, most, self.step, self.what)

    @property
    def whole(self) -> Units:
        """All of them as one row."""
        return Units((self.size,), (sum(self.least),), (sum(self.most),), self.step, self.what)

    def order(self, row: int) -> NDArray[np.intp]:
        """Ids of a row's units, the first to go first; ties keep the lower id.

        Dropped experts go first and pinned ones last. The groups of a router lose one in turn.
        """
        order = np.argsort(-self.saliency[row], kind="stable")[::-1]
        if not self.layers:
            return order
        layer, limits = self.layers[row].index, self.limits
        pinned, dropped = limits.pinned.get(layer, ()), limits.dropped.get(layer, ())
        if pinned or dropped:
            when = np.zeros(len(order))
            when[list(pinned)], when[list(dropped)] = 1, -1
            order = order[np.argsort(when[order], kind="stable")]
        groups = self.groups[row] if self.groups else 1
        if groups == 1:
            return order
        size, turn = len(order) // groups, np.empty_like(order)
        for group in range(groups):
            turn[order // size == group] = np.arange(size)
        return order[np.argsort(turn, kind="stable")]

    @cached_property
    def queues(self) -> list[NDArray[np.intp]]:
        """For each pool, the positions in it of its rows, in the order in which they lose a step.

        Ties keep the earlier row.
        """
        return [self._queue(range(run.start, run.stop)) for run in self.runs]

    def _queue(self, rows: range) -> NDArray[np.intp]:
        steps = [(self.most[row] - self.least[row]) // self.step for row in rows]
        if len(rows) == 1:
            return np.zeros(steps[0], dtype=np.intp)
        # Saliency lost with each further step of a row, between its least and most removal.
        costs = []
        for row in rows:
            values = self.saliency[row]
            # Of neurons, of which there are millions, the values are enough.
            ascending = values[self.order(row)] if self.layers else np.sort(values)
            ascending = ascending[self.least[row] : self.most[row]]
            # As many addends in the same order, none smaller: rounding keeps the sums in order.
            costs.append(ascending.reshape(-1, self.step).sum(axis=1))
        owner = np.repeat(np.arange(len(rows)), steps)
        turn = np.concatenate([np.arange(number) for number in steps])
        # Within a row costs ascend, so sorting keeps its steps in order. Of equal costs the later
        # row loses first.
        return owner[np.lexsort((turn, -owner, np.concatenate(costs)))]

    def lowest(self, shares: Sequence[int]) -> Removed:
        """What each row loses when each pool loses its share: steps of the lowest saliency.

        What is left of a pool has the largest sum of saliency that its share allows.
        """
        if not self.pools:
            return tuple(shares)
        removed: list[int] = []
        for run, share, queue in zip(self.runs, shares, self.queues, strict=True):
            least = self.least[run]
            steps = np.bincount(queue[: (share - sum(least)) // self.step], minlength=len(least))
            removed += (np.array(least) + self.step * steps).tolist()
        return tuple(removed)

    def kept(self, row: int, removed: int) -> tuple[int, ...]:
        """Ids of the units that stay in a row that loses this many."""
        return tuple(np.sort(self.order(row)[removed:]).tolist())


def expert_units(layers: Sequence[MoELayer], limits: Constraints | None = None) -> Units:
    """The experts of each layer, within what its router and the constraints leave."""
    limits = limits or Constraints()
    check_names(layers, limits)
    step = math.lcm(limits.multiple_of, *(layer.num_groups for layer in layers))
    bounds = [kept_bounds(layer, limits, step) for layer in layers]
    sizes = tuple(layer.num_experts for layer in layers)
    least = tuple(size - high for size, (_, high) in zip(sizes, bounds, strict=True))
    most = tuple(size - low for size, (low, _) in zip(sizes, bounds, strict=True))
    groups = tuple(layer.num_groups for layer in layers)
    return Units(sizes, least, most, step, layers=tuple(layers), groups=groups, limits=limits)


def open_units(layers: Sequence[MoELayer]) -> Units:
    """The experts of each layer without bounds, so that any number can go."""
    sizes = tuple(layer.num_experts for layer in layers)
    return Units(sizes, (0,) * len(sizes), sizes, layers=tuple(layers))


def neuron_units(
    widths: Mapping[int, Sequence[int]],
    limits: Constraints | None = None,
    scope: NeuronScope = NeuronScope.EXPERT,
    saliency: NeuronScores | None = None,
) -> Units:
    """The neurons of each expert, by layer and id; `widths` are layer -> neurons of each expert.

    An expert keeps a multiple of `multiple_of` and at least the floor. It keeps all if it is pinned
    or its layer is protected, and none if it is dropped; it may lose all. `saliency` is layer ->
    expert -> (neurons,).
    """
    limits = limits or Constraints()
    experts = [(layer, expert) for layer in sorted(widths) for expert in range(len(widths[layer]))]
    sizes = tuple(widths[layer][expert] for layer, expert in experts)
    bounds = [kept_widths(key, width, limits) for key, width in zip(experts, sizes, strict=True)]
    least = tuple(size - high for size, (_, high) in zip(sizes, bounds, strict=True))
    most = tuple(size - low for size, (low, _) in zip(sizes, bounds, strict=True))
    ranked: tuple[FloatArray, ...] = ()
    if saliency is not None:
        ranked = tuple(saliency[layer][expert] for layer, expert in experts)
        for (layer, _), values in zip(experts, ranked, strict=True):
            if not np.isfinite(values).all():
                raise PlanError(f"The saliency of a neuron in layer {layer} is no finite number.")
    pools = {
        NeuronScope.EXPERT: (),
        NeuronScope.LAYER: tuple(len(widths[layer]) for layer in sorted(widths) if widths[layer]),
        NeuronScope.GLOBAL: (len(experts),),
    }[scope]
    return Units(
        sizes, least, most, limits.multiple_of, NEURONS, pools,
        experts=tuple(experts), limits=limits, saliency=ranked,
    )  # fmt: skip


def check_total(total: int, units: Units) -> None:
    """Refuse a total that the rows cannot lose."""
    totals = units.totals
    if total in totals:
        return
    if total > totals[-1]:
        why = f"at most {_askable(totals[-1], units)} can go"
        why += "" if totals[-1] else ", since limits, such as --protect, keep all of them"
    elif total < totals[0]:
        why = f"at least {_askable(totals[0], units)} must go"
    else:
        step = units.step
        below = total - (total - totals[0]) % step
        near = " or ".join(_askable(number, units) for number in (below, below + step))
        why = f"they go {step} at a time here; nearest: {near}"
    amount = f"{total} ({as_percent(total, units.size)}) of {units.size} {units.what}"
    raise PlanError(f"The budget removes {amount}, but {why}.")


def _askable(number: int, units: Units) -> str:
    """A number, and the sparsity that removes as many; if none does, the option that does.

    A sparsity is rounded down per row: 33.34% of three layers of 8 is 2 each, not 8. A uniform
    schedule refuses a sparsity if some layer cannot lose its share.
    """
    percent = as_percent(number, units.size)
    if number < units.size:
        rho = parse_sparsity(percent)
        shares = [num_removed(size, rho) for size in units.sizes]
        if sum(shares) == number and not units.misfits(shares):
            return f"{number} ({percent})"
    return f"{number} (--remove {number})"


def apportion(total: int, weights: Sequence[int], units: Units) -> Removed:
    """Numbers that sum to `total`, in proportion to `weights`, by largest remainder.

    Each row's quota is level * weight, clamped to its bounds, at the one level where the quotas sum
    to `total`: what a bound denies one row goes to the others. Quotas are rounded down to whole
    steps, and the remaining steps go to the largest remainders, ties to the earlier row. All in
    exact fractions. `weights` are positive.
    """
    if min(weights) < 1:
        raise ValueError("weights must be positive")
    check_total(total, units)
    rows = list(zip(weights, units.least, units.most, strict=True))
    level = _level(total, rows)
    steps = [(_clamp(level * weight, *ends) - ends[0]) / units.step for weight, *ends in rows]
    counts = [int(step) for step in steps]
    missing = (total - sum(units.least)) // units.step - sum(counts)
    by_remainder = sorted(range(len(rows)), key=lambda i: (counts[i] - steps[i], i))
    for position in by_remainder[:missing]:
        counts[position] += 1
    return tuple(
        least + units.step * count for least, count in zip(units.least, counts, strict=True)
    )


def _clamp(quota: Fraction, least: int, most: int) -> Fraction:
    return min(max(quota, Fraction(least)), Fraction(most))


def _level(total: int, rows: Sequence[tuple[int, int, int]]) -> Fraction:
    """The level at which the quotas sum to `total`: they grow with it, linear between bounds.

    `rows` are weight, least and most.
    """

    def filled(level: Fraction) -> Fraction:
        return sum((_clamp(level * weight, *ends) for weight, *ends in rows), Fraction(0))

    bounds = sorted({Fraction(end, weight) for weight, *ends in rows for end in ends})
    after = bisect_left(bounds, Fraction(total), key=filled)
    if after == 0:
        return bounds[0]
    below, above = bounds[after - 1], bounds[after]
    start, end = filled(below), filled(above)
    return below + (above - below) * (total - start) / (end - start)
