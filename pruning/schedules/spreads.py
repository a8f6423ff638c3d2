"""How schedules spread a budget: what a schedule is, and the function of each.

Evenly, with more from some layers (arXiv:2603.06003), from all layers ranked together, or by the
counts of a file.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from fractions import Fraction
from typing import TYPE_CHECKING, Literal, get_args

import numpy as np

from analysis.errors import PlanError
from analysis.numbers.sparsity import as_percent, parse_sparsity
from pruning.plan.budget import Budget, sparsity_budget
from pruning.plan.kept import count_problem, count_reason
from pruning.plan.selection import Allocation, allocation_of
from pruning.plan.units import Removed, Units, apportion, check_total, expert_units

if TYPE_CHECKING:
    from analysis.families.base import MoELayer
    from analysis.numbers.arrays import FloatArray
    from pruning.measures.curves import Sensitivity
    from pruning.plan.constraints import Constraints

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

    @property
    def reads_tokens(self) -> bool:
        """Whether it looks at how many tokens each expert got, so that it needs a calibration."""
        return "frequency" in self.needs


def uniform(
    layers: Sequence[MoELayer],
    budget: Budget | str | Fraction | Decimal | float,
    constraints: Constraints | None = None,
) -> Allocation:
    """Remove floor(rho * n) experts from every layer; `budget` may be rho itself.

    A budget without rho (a number, a target size) is spread in proportion to n, by largest
    remainder, and so is every budget if constraints keep a layer from its share.
    """
    units = expert_units(layers, constraints)
    if not isinstance(budget, Budget):
        budget = sparsity_budget(units, budget)
    return allocation_of(layers, spread_evenly(units, budget, Evidence()))


def spread_evenly(units: Units, budget: Budget, _: Evidence) -> Removed:
    """The shares of the budget if each row can lose its own, else in proportion to the sizes.

    What a full pool of neurons keeps the others lose; a layer of experts that cannot lose its share
    is refused, unless a constraint on it is why.
    """
    # Shares are those of these rows, or of others.
    floors = budget.floors if len(budget.floors) == len(units.sizes) else ()
    if floors and sum(floors) == budget.total and not units.misfits(floors):
        return floors
    if floors and (outliers := _out_of_bounds(units, floors)):
        row = outliers[0]
        layer, size, keep = units.layers[row], units.sizes[row], units.sizes[row] - floors[row]
        would = f"Layer {layer.index} would keep {keep} of {size} experts"
        why = count_reason(layer, keep) if keep < layer.least_kept else None
        low, high = size - units.most[row], size - units.least[row]
        bounds = f"{would}, but layers are to keep {low} to {high}"
        raise PlanError(f"{why or bounds}; {_what_works(units, budget.total)}.")
    # A pool without neurons, as an export may leave, has no room either.
    return apportion(budget.total, [max(size, 1) for size in units.sizes], units)


def _out_of_bounds(units: Units, floors: Sequence[int]) -> list[int]:
    """Positions of layers that cannot lose their share, if no constraint on them is why."""
    held_layers = units.limits.held
    return [
        row
        for row, layer in enumerate(units.layers)
        if layer.index not in held_layers and not units.least[row] <= floors[row] <= units.most[row]
    ]


def _what_works(units: Units, goal: int) -> str:
    """The nearest sparsities that suit every layer; without any, the nearest number of experts."""
    percents = {as_percent(count, size) for size in units.sizes for count in range(size)}
    budgets = [
        sparsity_budget(units, text) for text in sorted(percents, key=parse_sparsity, reverse=True)
    ]
    totals = {
        budget.total: budget.text
        for budget in budgets
        if budget.total in units.totals and not _out_of_bounds(units, budget.floors)
    }
    below = [totals[total] for total in sorted(totals) if total <= goal][-1:]
    above = [totals[total] for total in sorted(totals) if total > goal][:1]
    if below or above:
        return f"nearest sparsity that suits every layer: {' or '.join(below + above)}"
    (near,) = units.whole.nearest([goal])
    experts = "1 expert" if near == 1 else f"{near} experts"
    return f"no sparsity suits every layer, but {experts} can go in all (--remove {near})"


Pattern = Literal["early", "middle", "late"]
PATTERNS: tuple[Pattern, ...] = get_args(Pattern)


def pattern_weights(pattern: Pattern, num_layers: int) -> list[int]:
    """How heavily each of the sparse layers l = 1..L is pruned, relative to the others.

    late: l; early: L + 1 - l; middle: min(l, L + 1 - l).
    """
    late = list(range(1, num_layers + 1))
    early = late[::-1]
    middle = [min(pair) for pair in zip(late, early, strict=True)]
    return {"early": early, "middle": middle, "late": late}[pattern]


def spread_pattern(pattern: Pattern, units: Units, budget: Budget, _: Evidence) -> Removed:
    """The budget in proportion to `pattern_weights`, by largest remainder, see `apportion`."""
    return apportion(budget.total, pattern_weights(pattern, len(units.sizes)), units)


def remove_lowest(units: Units, budget: Budget, saliency: FloatArray) -> Removed:
    """Remove the experts of lowest saliency, in whatever layer: all of them are one pool.

    What is left has the largest sum of saliency that the budget allows. Ties keep the lower layer,
    then the lower expert. The scale of saliencies may differ between layers: `rescale` maps each
    layer to [0, 1] first. With routed tokens as saliency, this is the frequency-based schedule
    (arXiv:2603.06003, Figure 1).

    `saliency` is (layers, most experts of a layer), higher = keep; NaN where there is no expert. If
    layers lose several experts at a time, these go or stay together, by their sum of saliencies.
    """
    check_total(budget.total, units)
    values = tuple(row[:size] for row, size in zip(saliency, units.sizes, strict=True))
    if any(np.isnan(row).any() for row in values):
        raise ValueError("every expert needs a saliency")
    return replace(units, pools=(len(values),), saliency=values).lowest((budget.total,))


def counts_budget(units: Units, kept: Mapping[int, int], text: str) -> Budget:
    """The budget that these counts spend."""
    return Budget(sum(_removed(units, kept)), "file", text)


def _removed(units: Units, kept: Mapping[int, int]) -> Removed:
    rows = zip(units.layers, units.sizes, strict=True)
    return tuple(size - kept[layer.index] for layer, size in rows)


def from_counts(units: Units, kept: Mapping[int, int]) -> Allocation:
    """The allocation of these counts.

    If constraints fix a layer at another number, the other layers make up for the difference in
    proportion to their experts, so that the total stays.
    """
    removed = spread_counts(units, counts_budget(units, kept, ""), Evidence(counts=kept))
    return allocation_of(units.layers, removed)


def fit_counts(units: Units, budget: Budget, kept: Mapping[int, int]) -> Allocation:
    """The allocation nearest to these counts that spends the budget within the constraints.

    Each layer moves to the nearest number that it can keep; then all layers make up for what the
    budget misses, in proportion to their experts.
    """
    check_total(budget.total, units)
    start = units.nearest(_removed(units, kept))
    return allocation_of(units.layers, _balance(start, budget.total, units))


def spread_counts(units: Units, budget: Budget, evidence: Evidence) -> Removed:
    """See `from_counts`; a given budget must equal what the counts spend."""
    kept = evidence.counts
    if kept is None:
        raise ValueError("the schedule's evidence is missing")
    removed = _removed(units, kept)
    if sum(removed) != budget.total:
        raise PlanError(
            f"The file removes {sum(removed)} experts, but {budget.text} is {budget.total}; "
            "leave the budget out, or correct the file."
        )
    start, held_layers = units.nearest(removed), units.limits.held
    for row in units.misfits(removed):
        layer, size = units.layers[row], units.sizes[row]
        if layer.index not in held_layers:
            raise PlanError(
                count_problem(layer, kept[layer.index])
                or f"Layer {layer.index} would keep {kept[layer.index]} experts, but it can keep "
                f"from {size - units.most[row]} to {size - units.least[row]} in steps of "
                f"{units.step}; nearest: {size - start[row]}."
            )
    return _balance(start, budget.total, units)


def _balance(start: Sequence[int], total: int, units: Units) -> Removed:
    """Counts near `start` that sum to `total`; the difference is spread in proportion to sizes."""
    missing = total - sum(start)
    ends = zip(start, units.least, units.most, strict=True)
    free = tuple(most - n if missing >= 0 else n - least for n, least, most in ends)
    movable = replace(units, least=(0,) * len(free), most=free)
    moved, sign = apportion(abs(missing), units.sizes, movable), 1 if missing >= 0 else -1
    return tuple(n + sign * more for n, more in zip(start, moved, strict=True))
