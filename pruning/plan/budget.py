"""Budgets: how many experts go in all, from a sparsity, a number or a target size."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Literal

from analysis.errors import PlanError
from analysis.numbers.sparsity import as_percent, num_removed, parse_sparsity
from pruning.plan.constraints import Constraints, check_names
from pruning.plan.kept import count_problem
from pruning.plan.sizes import (
    BFLOAT16,
    BYTES,
    PARAMS,
    format_bytes,
    parse_bytes,
    size_up,
    tensors_of,
    total_size,
)
from pruning.plan.units import NEURONS, Units, apportion, check_total, expert_units

if TYPE_CHECKING:
    from analysis.families.base import MoELayer
    from analysis.model.moe_model import MoEModel
    from analysis.numbers.arrays import IntArray

BudgetKind = Literal["sparsity", "count", "size", "shrink", "params", "file"]
TargetDtype = Literal["own", "bfloat16"]
GIB = 1 << 30
_MUCH = 2  # times what was asked: a cut that takes as much is worth a word
_FAR = Fraction(3, 100)  # of the whole: a cut that exceeds its target by more is worth a word


@dataclass(frozen=True, slots=True)
class Budget:
    """Experts removed from all layers together: B, the same for every schedule."""

    total: int  # B
    kind: BudgetKind  # how it was given
    text: str  # what was given
    # What a uniform schedule removes from each layer; empty if the budget need not divide evenly.
    floors: tuple[int, ...] = ()
    least: str = ""  # said if nothing near what was asked can go, see `SizeTarget.least`

    @property
    def cache_key(self) -> str:
        """All of it."""
        return repr(self)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON."""
        return {"kind": self.kind, "asked": self.text, "removed": self.total}


def sparsity_budget(
    units: Units, sparsity: str | Fraction | Decimal | float, *, even: bool = True
) -> Budget:
    """B = sum over pools of floor(rho * n), rounded down to what can go; never more than asked.

    rho is "0.5", "50%" or a number. A float counts as its shortest decimal form: 0.55 is 55/100,
    not the nearest binary number. `even`: each pool is to lose its own share, rounded down; else
    the schedule spreads the sum, and so it does if a share is out of bounds or layers are set by
    hand. What is out of bounds is left to be refused.
    """
    text = str(sparsity).strip()
    rho = parse_sparsity(sparsity if isinstance(sparsity, Fraction) else text)
    limits = units.limits
    if is_set := bool(limits.fixed):  # set layers are whole steps apart
        units = expert_units(units.layers, replace(limits, fixed={}))
    pools = bounds = units.by_pool
    if units.what == NEURONS:
        # Multiples are all that restricts a single share; the other constraints restrict the sum.
        least = tuple(number % units.step for number in pools.least)
        # Whole steps apart, so rounded up: no share is above its size.
        ends = zip(pools.sizes, least, strict=True)
        most = tuple(size + (low - size) % units.step for size, low in ends)
        bounds = replace(pools, least=least, most=most)
    exact = tuple(num_removed(size, rho) for size in pools.sizes)
    shares = bounds.rounded_down(exact)
    if not even or is_set or bounds.misfits(shares):
        shares = exact
    (total,) = pools.whole.rounded_down([sum(shares)])
    if units.what == NEURONS:
        check_total(total, pools.whole)
    return Budget(total, "sparsity", text, shares)


def check_removes(budget: Budget, units: Units) -> Budget:
    """The budget; a sparsity that removes nothing is refused, unless it is 0."""
    if budget.total or budget.kind != "sparsity" or not parse_sparsity(budget.text):
        return budget
    step, largest = units.step, max(units.by_pool.sizes) // units.step
    blocks = units.what if step == 1 else f"blocks of {step} {units.what}"
    raise PlanError(
        f"A sparsity of {budget.text} removes nothing: shares are rounded down, and there are "
        f"at most {largest} {blocks} to take one from. Give {as_percent(1, largest)} or more, or "
        "0 to keep everything."
    )


def rounding_note(budget: Budget, sizes: Sequence[int], things: str = "experts") -> str | None:
    """A note on a budget that was rounded to what can go.

    `sizes` are those that a sparsity is a share of.
    """
    if budget.kind != "sparsity":
        return budget.least or None
    rho, size = parse_sparsity(budget.text), sum(sizes)
    if (exact := sum(num_removed(size, rho) for size in sizes)) == budget.total:
        return None
    return (
        f"{budget.text} is {exact} of {size} {things}, which cannot go exactly; rounded down, "
        f"{budget.total} went ({as_percent(budget.total, size)})."
    )


def count_budget(units: Units, count: int) -> Budget:
    """B given as a number. A model keeps an expert at least; experts may lose all neurons."""
    if units.what == NEURONS:
        check_total(count, units.whole)
    elif not 0 <= count < units.size:
        raise PlanError(
            f"{count} of {units.size} experts cannot be removed; give a number from 0 to "
            f"{units.size - 1}."
        )
    return Budget(count, "count", str(count))


@dataclass(frozen=True, slots=True)
class SizeTarget:
    """How small the weights must become, without file headers and tokenizer."""

    # A size on disk, the share of bytes to remove, or the share of all parameters to remove.
    kind: Literal["size", "shrink", "params"]
    text: str  # as given: a size with its unit (default GiB), or 0.4 or 40%
    # Count bytes in the checkpoint's own dtypes, or 2 bytes per parameter.
    dtype: TargetDtype = "own"

    @property
    def in_words(self) -> str:
        """What was asked, with its unit."""
        text = self.text.strip()
        return f"{text} GiB" if self.kind == "size" and text[-1:].isdigit() else text

    def measure(self, size: IntArray) -> int:
        """The part of a size, see `pruning.plan.sizes`, that the target limits."""
        if self.kind == "params":
            return int(size[PARAMS])
        return int(size[BYTES if self.dtype == "own" else BFLOAT16])

    def full_size(self, model: MoEModel) -> int:
        """What the target measures of the whole model."""
        return self.measure(total_size(tensors_of(model).source))

    def after(self, model: MoEModel, removed: Sequence[int]) -> int:
        """What it measures after removing this many experts from each layer, whichever they are."""
        return self.measure(tensors_of(model).after(removed))

    def most(self, model: MoEModel) -> Fraction:
        """The largest measure that meets the target."""
        full_size = self.full_size(model)
        if self.kind != "size":
            return (1 - parse_sparsity(self.text)) * full_size
        limit = parse_gib(self.text) * GIB
        if full_size <= limit:
            raise PlanError(
                f"Nothing would be removed: {model.name} already takes {format_bytes(full_size)}, "
                f"and the target is {self.in_words}."
            )
        return limit

    def refusal(self, model: MoEModel, smallest: int, can_go: str) -> PlanError:
        """The error for a target out of reach; `can_go` says how much can go at most."""
        name, full_size = model.name, self.full_size(model)
        if self.kind == "size":
            words = f"{name} cannot shrink to {self.in_words}"
            if smallest >= full_size:
                return PlanError(f"{words}: {can_go} can go, which saves nothing.")
            leaves = f", which leaves {format_bytes(smallest)}"
            return PlanError(
                f"{words}: {can_go} can go{leaves}; the smallest target that works is "
                f"{size_up(smallest)}."
            )
        words = f"{name} cannot shrink by {self.text.strip()}"
        if self.kind == "params":
            words = f"{self.text.strip()} of the parameters of {name} cannot go"
        # Rounded down, so that the user can ask for it.
        most = 10_000 * (full_size - smallest) // full_size / 100
        return PlanError(f"{words}: {can_go} can go; the largest share that works is {most:g}%.")

    def nothing(self, units: Units) -> Budget | None:
        """The budget of 0 if that is asked for, not to make up for a head; refused if some go."""
        if self.kind == "size" or parse_sparsity(self.text):
            return None
        check_total(0, units)
        return self.budget(0, (0,) * len(units.sizes))

    def least(self, model: MoEModel, size: int, smaller: int | None, went: str) -> str:
        """Said of a cut far above what was asked, if it is the least that goes; else empty.

        `size` is what the target measures after it, `smaller` after the next smaller cut, if the
        limits allow one; `went` says what goes.
        """
        full_size = self.full_size(model)
        removed, target = full_size - size, full_size - self.most(model)
        if removed < _MUCH * target or (smaller is not None and smaller < full_size):
            return ""
        why = "the limits allow no fewer" if smaller is None else "fewer save nothing"
        what = "parameters" if self.kind == "params" else "bytes"
        return (
            f"{self.in_words} was asked for; the least that can go is {went}, "
            f"{removed / full_size:.2%} of the {what}: {why}."
        )

    def budget(
        self, total: int, floors: tuple[int, ...] = (), words: str = "", least: str = ""
    ) -> Budget:
        """The budget that meets the target."""
        dtype = "" if self.dtype == "own" else f" {self.dtype}"
        return Budget(total, self.kind, f"{self.in_words}{dtype}{words}", floors, least)


def smallest_budget(
    units: Units,
    model: MoEModel,
    target: SizeTarget,
    size_after: Callable[[int], int],
    stored: str = "",
) -> Budget:
    """The smallest B that meets the target; `size_after` is what it measures after a number went.

    `stored` says how neurons are stored, for people.
    """
    if nothing := target.nothing(units.by_pool):
        return nothing
    totals, most = units.totals, target.most(model)
    smallest = size_after(totals[-1])
    if smallest > most:
        can_go = f"{totals[-1]} of {units.size} {units.what}"
        can_go = f"in the width mode {stored} {can_go}" if stored else can_go
        raise target.refusal(model, smallest, can_go)

    def fits(place: int) -> bool:
        return size_after(totals[place]) <= most

    # Removing more never grows the weights, so bisection finds the smallest number that fits; but
    # a schedule may replace a few large experts by more small ones.
    may_grow = units.what != NEURONS and not _are_alike(model, target)
    place = 0 if may_grow else bisect_left(range(len(totals)), True, key=fits)
    # Where experts of a pool differ in width, largest remainders may widen one again.
    while not fits(place):
        place += 1
    least = target.least(
        model,
        size_after(totals[place]),
        size_after(totals[place - 1]) if place else None,
        f"{totals[place]} of {units.size} {units.what}",
    )
    return target.budget(totals[place], words=f", {stored}" if stored else "", least=least)


def size_budget(
    model: MoEModel,
    target: SizeTarget,
    constraints: Constraints | None = None,
    *,
    spread: Callable[[int], Sequence[int]] | None = None,
) -> Budget:
    """The smallest number of experts that meets the target.

    `spread` is what the schedule takes of it from each layer, uniform by default; it matters only
    if experts of different layers differ in size.
    """
    units = expert_units(model.layers, constraints)

    def evenly(total: int) -> Sequence[int]:
        return apportion(total, units.sizes, units)

    removal = evenly if spread is None or _are_alike(model, target) else spread

    def size_after(total: int) -> int:
        return target.after(model, removal(total))

    return smallest_budget(units, model, target, size_after)


def _are_alike(model: MoEModel, target: SizeTarget) -> bool:
    """Whether the experts of all layers have one size."""
    tensors = tensors_of(model)
    sizes = {target.measure(size) for size in tensors.average + tensors.routers}
    return len(sizes) == 1 and not tensors.heads_have_experts


def even_budget(
    model: MoEModel, target: SizeTarget, constraints: Constraints | None = None
) -> Budget:
    """The budget that meets the target while all layers keep the same, largest possible number.

    Serving engines read one number for all layers. Protected and set layers keep theirs, and locked
    ones the number that all layers would keep if none were set.
    """
    ways = _even_ways(model, target, constraints)
    if nothing := target.nothing(expert_units(model.layers, constraints)):
        return nothing
    most = target.most(model)
    place = next((n for n, way in enumerate(ways) if target.after(model, way) <= most), None)
    if place is None:
        can_go = f"{sum(ways[-1])} of {model.num_experts} experts"
        raise target.refusal(model, target.after(model, ways[-1]), can_go)
    removed, smaller = ways[place], target.after(model, ways[place - 1]) if place else None
    went = f"{sum(removed)} of {model.num_experts} experts in equal counts per layer"
    least = target.least(model, target.after(model, removed), smaller, went)
    return target.budget(sum(removed), removed, least=least)


def smaller_cut(
    model: MoEModel, target: SizeTarget, constraints: Constraints, removed: Sequence[int]
) -> str:
    """The nearest cut below one that exceeds its target by far, in words; else empty.

    `removed` is what `even_budget` takes from each layer. Equal counts come in steps of one expert
    per layer, which is much where layers have few.
    """
    ways, full_size = _even_ways(model, target, constraints), target.full_size(model)
    place, most, size = ways.index(tuple(removed)), target.most(model), target.after(model, removed)
    if not place or most - size <= _FAR * full_size:
        return ""
    smaller = target.after(model, ways[place - 1])
    if smaller >= full_size:  # see `SizeTarget.least`
        return ""
    # Rounded so that it can be asked for.
    share = f"{10_000 * (full_size - smaller) // full_size / 100:g}%"
    what = "parameters" if target.kind == "params" else "bytes"
    option = {
        "shrink": f"--shrink {share}",
        "params": f"--params-share {share}",
        "size": f"--target-size {size_up(smaller)}",
    }[target.kind]
    removed_share, asked_share = 1 - size / full_size, float(1 - most / full_size)
    return (
        f"equal counts per layer remove {removed_share:.1%} of the {what}, {asked_share:.1%} was "
        f"asked for; the nearest smaller cut is {option}"
    )


def _even_ways(
    model: MoEModel, target: SizeTarget, constraints: Constraints | None
) -> list[tuple[int, ...]]:
    """What each layer can lose if all keep one number, from least to most; see `even_budget`."""
    limits = constraints or Constraints()
    check_names(model.layers, limits)
    if locked := limits.locked - set(limits.fixed):
        free = replace(limits, fixed={}, locked=frozenset())
        base = even_budget(model, target, free).floors
        free_counts = {
            layer.index: layer.num_experts - count
            for layer, count in zip(model.layers, base, strict=True)
            if layer.index in locked
        }
        limits = replace(limits, fixed={**limits.fixed, **free_counts})
    units, counts = expert_units(model.layers, limits), range(1)
    rows = list(zip(units.sizes, units.least, units.most, strict=True))
    # Protected and set layers have no choice.
    free_layers = [
        (layer.index, size - most, size - least)
        for layer, (size, least, most) in zip(model.layers, rows, strict=True)
        if least < most
    ]
    if free_layers:
        low, fewest, _ = max(free_layers, key=lambda row: row[1])
        high, _, most_kept = min(free_layers, key=lambda row: row[2])
        if fewest > most_kept:
            raise PlanError(
                f"No number of experts suits every layer: layer {low} keeps at least {fewest}, "
                f"layer {high} at most {most_kept}; allow numbers that differ with --uneven."
            )
        counts = range(fewest, most_kept + 1, units.step)
    return [
        tuple(least if least == most else size - count for size, least, most in rows)
        for count in reversed(counts)
    ]


def parse_gib(text: str, what: str = "target size") -> Fraction:
    """GiB of a positive size: `30` (GiB), `30GiB`, `30GB`, `6 MiB`; `what` it is, in errors."""
    size = parse_bytes(text, GIB)
    if size is None:
        raise PlanError(
            f"The {what} {text!r} is no number of GiB, nor a size such as 30GB or 500MiB."
        )
    if size <= 0:
        raise PlanError(f"The {what} {text!r} is no positive size.")
    return size / GIB


def uniform_neighbours(layers: Sequence[MoELayer], total: int) -> tuple[int, ...]:
    """The totals of uniform plans nearest to `total`: itself, or the next below and above.

    Only plans that leave every router enough experts count.
    """
    widest = max(layer.num_experts for layer in layers)
    totals = []
    for part in range(widest):
        floors = [num_removed(layer.num_experts, Fraction(part, widest)) for layer in layers]
        kept = [n.num_experts - count for n, count in zip(layers, floors, strict=True)]
        if all(count_problem(n, keep) is None for n, keep in zip(layers, kept, strict=True)):
            totals.append(sum(floors))
    if total in totals:
        return (total,)
    below = [number for number in totals if number < total][-1:]
    above = [number for number in totals if number > total][:1]
    return (*below, *above)


_SHARES = (40, 30, 20, 10)  # of the bytes, in percent; the first possible one is used


def possible_share(model: MoEModel, limits: Constraints) -> tuple[int, Budget]:
    """The share of the bytes to remove, in percent, that people are offered, and its budget.

    It is the largest of a few that the limits allow.
    """
    for share in _SHARES:
        try:
            return share, even_budget(model, SizeTarget("shrink", f"{share}%"), limits)
        except PlanError:
            continue
    raise PlanError(
        f"{model.name} cannot shrink by {_SHARES[-1]}% with equal layers: too few experts can go."
    )
