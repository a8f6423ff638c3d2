"""Budgets: how many experts go in all, from a sparsity, a number or a target size."""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from decimal import ROUND_CEILING, Context, Decimal, InvalidOperation
from fractions import Fraction
from typing import Any, Literal

from analysis.arrays import IntArray
from analysis.errors import PlanError
from analysis.families import MoELayer
from analysis.model import MoEModel
from analysis.sparsity import as_percent, num_removed, parse_sparsity
from pruning.allocation import apportion, count_problem
from pruning.constraints import (
    Constraints,
    Room,
    check_names,
    check_total,
    rooms_of,
    sum_of,
)
from pruning.sizes import SIZE_UNITS, format_bytes, tensors_of

BudgetKind = Literal["sparsity", "count", "size", "shrink", "params", "file"]
TargetDtype = Literal["own", "bfloat16"]
GIB = 1 << 30
BFLOAT16_BYTES = 2
_DIGITS = 100
_FAR = Fraction(3, 100)  # of the whole: a cut that exceeds its target by more is worth a word


@dataclass(frozen=True, slots=True)
class Budget:
    """Experts removed from all layers together: B, the same for every schedule."""

    total: int  # B
    kind: BudgetKind  # how it was given
    asked: str  # what was given, as text
    # What a uniform schedule removes from each layer; empty if the budget need not divide evenly.
    floors: tuple[int, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON."""
        return {"kind": self.kind, "asked": self.asked, "removed": self.total}


def sparsity_budget(
    layers: Sequence[MoELayer],
    sparsity: str | Fraction | Decimal | float,
    constraints: Constraints | None = None,
    *,
    even: bool = True,
) -> Budget:
    """B = sum over layers of floor(rho * n), rounded down to what can go, see `rounded_shares`.

    rho is "0.5", "50%" or a number. A float counts as its shortest decimal form: 0.55 is 55/100,
    not the nearest binary number. `even`: each layer is to lose its own share; else the schedule
    spreads the sum, and so it does if layers are set by hand.
    """
    limits, text = constraints or Constraints(), str(sparsity).strip()
    rho = parse_sparsity(sparsity if isinstance(sparsity, Fraction) else text)
    rooms = rooms_of(layers, replace(limits, fixed={}))  # set layers are whole steps apart
    exact = [num_removed(layer.num_experts, rho) for layer in layers]
    total, shares = rounded_shares(exact, rooms, sum_of(rooms), even=even and not limits.fixed)
    return Budget(total, "sparsity", text, shares)


def rounded_shares(
    exact: Sequence[int], rooms: Sequence[Room], total_room: Room, *, even: bool = True
) -> tuple[int, tuple[int, ...]]:
    """A sparsity's total and shares, rounded down to what can go; never more than was asked for.

    Each share is, or the sum alone if a share is out of bounds or the sum is spread anyway (not
    `even`). What is out of bounds is left to be refused.
    """
    shares = tuple(room.rounded_down(share) for room, share in zip(rooms, exact, strict=True))
    if even and all(map(Room.allows, rooms, shares)):
        return total_room.rounded_down(sum(shares)), shares
    return total_room.rounded_down(sum(exact)), tuple(exact)


def check_removes(budget: Budget, rooms: Sequence[Room], things: str = "experts") -> Budget:
    """The budget; a sparsity that removes nothing is refused, unless it is 0.

    `rooms` are those of the groups of `things` of which the sparsity is a share.
    """
    if budget.total or budget.kind != "sparsity" or not parse_sparsity(budget.asked):
        return budget
    step, largest = rooms[0].step, max(room.size for room in rooms) // rooms[0].step
    blocks = things if step == 1 else f"blocks of {step} {things}"
    raise PlanError(
        f"A sparsity of {budget.asked} removes nothing: shares are rounded down, and there are "
        f"at most {largest} {blocks} to take one from. Give {as_percent(1, largest)} or more, or "
        "0 to keep everything."
    )


def rounding_note(budget: Budget, sizes: Sequence[int], things: str = "experts") -> str | None:
    """A note on a sparsity that was rounded to what can go; `sizes` are those it is a share of."""
    if budget.kind != "sparsity":
        return None
    rho, size = parse_sparsity(budget.asked), sum(sizes)
    if (exact := sum(num_removed(each, rho) for each in sizes)) == budget.total:
        return None
    return (
        f"{budget.asked} is {exact} of {size} {things}, which cannot go exactly; rounded down, "
        f"{budget.total} went ({as_percent(budget.total, size)})."
    )


def count_budget(layers: Sequence[MoELayer], count: int) -> Budget:
    """B given as a number."""
    experts = sum(layer.num_experts for layer in layers)
    if not 0 <= count < experts:
        raise PlanError(
            f"{count} of {experts} experts cannot be removed; give a number from 0 to "
            f"{experts - 1}."
        )
    return Budget(count, "count", str(count))


@dataclass(frozen=True, slots=True)
class SizeTarget:
    """How small the weights must become.

    Sizes are (2,): bytes in the dtypes on disk, and parameters, as `pruning.sizes` counts them,
    without file headers and tokenizer.
    """

    # A size on disk, the share of bytes to remove, or the share of all parameters to remove.
    kind: Literal["size", "shrink", "params"]
    asked: str  # as given: a size with its unit (default GiB), or 0.4 or 40%
    # Count bytes in the checkpoint's own dtypes, or 2 bytes per parameter.
    dtype: TargetDtype = "own"

    @property
    def in_words(self) -> str:
        """What was asked, with its unit."""
        asked = self.asked.strip()
        return f"{asked} GiB" if self.kind == "size" and asked[-1:].isdigit() else asked

    def measure(self, size: IntArray) -> int:
        """The part of a size that the target limits."""
        nbytes, params = size.tolist()
        if self.kind == "params":
            return int(params)
        return int(nbytes if self.dtype == "own" else params * BFLOAT16_BYTES)

    def most(self, full_size: int, name: str) -> Fraction:
        """The largest measure that meets the target; `full_size` is the whole model's."""
        if self.kind != "size":
            return (1 - parse_sparsity(self.asked)) * full_size
        limit = parse_gib(self.asked) * GIB
        if full_size <= limit:
            raise PlanError(
                f"Nothing would be removed: {name} already takes {format_bytes(full_size)}, "
                f"and the target is {self.in_words}."
            )
        return limit

    def refusal(self, name: str, smallest: int, full_size: int, can_go: str) -> PlanError:
        """The error for a target out of reach; `can_go` says how much can go at most."""
        if self.kind == "size":
            words = f"{name} cannot shrink to {self.in_words}"
            if smallest >= full_size:
                return PlanError(f"{words}: {can_go} can go, which saves nothing.")
            leaves = f", which leaves {format_bytes(smallest)}"
            return PlanError(
                f"{words}: {can_go} can go{leaves}; the smallest target that works is "
                f"{size_up(smallest)}."
            )
        words = f"{name} cannot shrink by {self.asked.strip()}"
        if self.kind == "params":
            words = f"{self.asked.strip()} of the parameters of {name} cannot go"
        # Rounded down, so that the user can ask for it.
        most = 10_000 * (full_size - smallest) // full_size / 100
        return PlanError(f"{words}: {can_go} can go; the largest share that works is {most:g}%.")

    def nothing(self, rooms: Sequence[Room], things: str = "experts") -> Budget | None:
        """The budget of 0 if that is asked for, not to make up for a head; refused if some go."""
        if self.kind == "size" or parse_sparsity(self.asked):
            return None
        check_total(0, rooms, things)
        return self.budget(0, (0,) * len(rooms))

    def budget(self, total: int, floors: tuple[int, ...] = (), words: str = "") -> Budget:
        """The budget that meets the target."""
        dtype = "" if self.dtype == "own" else f" {self.dtype}"
        return Budget(total, self.kind, f"{self.in_words}{dtype}{words}", floors)


# Experts to remove in all -> how many from each layer.
Spread = Callable[[int], Sequence[int]]


def size_budget(
    model: MoEModel,
    target: SizeTarget,
    constraints: Constraints | None = None,
    *,
    spread: Spread | None = None,
) -> Budget:
    """The smallest B that meets the target.

    `spread` is what the schedule takes from each layer, uniform by default; it matters only if
    experts of different layers differ in size.
    """
    sizes = _LinearSize.of(model, target)
    most = target.most(sizes.full_size, model.name)
    rooms = rooms_of(model.layers, constraints or Constraints())
    least, largest = sum(room.least for room in rooms), sum(room.most for room in rooms)
    reachable = range(least, largest + 1, rooms[0].step)

    if nothing := target.nothing(rooms):
        return nothing

    def evenly(total: int) -> Sequence[int]:
        return apportion(total, [layer.num_experts for layer in model.layers], rooms)

    removal = evenly if spread is None or sizes.is_even else spread
    smallest = sizes.after(removal(reachable[-1]))
    if smallest > most:
        can_go = f"{reachable[-1]} of {model.num_experts} experts"
        raise target.refusal(model.name, smallest, sizes.full_size, can_go)
    if sizes.is_even:
        # Removing more never grows the weights, so bisection finds the smallest number that fits.
        fits = bisect_left(reachable, True, key=lambda n: sizes.after(removal(n)) <= most)
    else:
        # A schedule may replace a few large experts by more small ones.
        fits = next(n for n, total in enumerate(reachable) if sizes.after(removal(total)) <= most)
    return target.budget(reachable[fits])


def even_budget(
    model: MoEModel, target: SizeTarget, constraints: Constraints | None = None
) -> Budget:
    """The budget that meets the target while all layers keep the same, largest possible number.

    Serving engines read one number for all layers. Protected and set layers keep theirs, and locked
    ones the number that all layers would keep if none were set.
    """
    sizes, ways = _LinearSize.of(model, target), _even_ways(model, target, constraints)
    if nothing := target.nothing(rooms_of(model.layers, constraints or Constraints())):
        return nothing
    most = target.most(sizes.full_size, model.name)
    removed = next((way for way in ways if sizes.after(way) <= most), None)
    if removed is None:
        can_go = f"{sum(ways[-1])} of {model.num_experts} experts"
        raise target.refusal(model.name, sizes.after(ways[-1]), sizes.full_size, can_go)
    return target.budget(sum(removed), removed)


def smaller_cut(
    model: MoEModel, target: SizeTarget, constraints: Constraints, removed: Sequence[int]
) -> str:
    """The nearest cut below one that exceeds its target by far, in words; else empty.

    `removed` is what `even_budget` takes from each layer. Equal counts come in steps of one expert
    per layer, which is much where layers have few.
    """
    sizes, ways = _LinearSize.of(model, target), _even_ways(model, target, constraints)
    place, most = ways.index(tuple(removed)), target.most(sizes.full_size, model.name)
    if not place or most - sizes.after(removed) <= _FAR * sizes.full_size:
        return ""
    smaller = sizes.after(ways[place - 1])
    # Rounded so that it can be asked for.
    share = f"{10_000 * (sizes.full_size - smaller) // sizes.full_size / 100:g}%"
    what = "parameters" if target.kind == "params" else "bytes"
    option = {
        "shrink": f"--shrink {share}",
        "params": f"--params-share {share}",
        "size": f"--target-size {size_up(smaller)}",
    }[target.kind]
    removed_share = float(1 - sizes.after(removed) / sizes.full_size)
    asked_share = float(1 - most / sizes.full_size)
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
    rooms, counts = rooms_of(model.layers, limits), _common_counts(model.layers, limits)
    return [
        tuple(room.least if room.least == room.most else room.size - count for room in rooms)
        for count in reversed(counts)
    ]


def _common_counts(layers: Sequence[MoELayer], limits: Constraints) -> range:
    """Numbers of experts that all layers can keep, protected and set ones aside."""
    rooms = rooms_of(layers, limits)
    pairs = zip(layers, rooms, strict=True)
    free = {layer.index: room for layer, room in pairs if room.least < room.most}
    if not free:
        return range(1)
    lows = {layer: room.size - room.most for layer, room in free.items()}
    highs = {layer: room.size - room.least for layer, room in free.items()}
    low, high = max(lows, key=lows.__getitem__), min(highs, key=highs.__getitem__)
    if lows[low] > highs[high]:
        raise PlanError(
            f"No number of experts suits every layer: layer {low} keeps at least {lows[low]}, "
            f"layer {high} at most {highs[high]}; allow numbers that differ with --uneven."
        )
    return range(lows[low], highs[high] + 1, rooms[0].step)


def parse_gib(text: str) -> Fraction:
    """GiB of a positive size: `30` (GiB), `30GiB`, `30GB`, `6 MiB`."""
    number_text, unit = text.strip(), GIB
    for name, size in SIZE_UNITS.items():
        if number_text.upper().endswith(name):
            number_text, unit = number_text[: -len(name)].rstrip(), size
            break
    try:
        number = Decimal(number_text)
    except InvalidOperation as error:
        raise PlanError(
            f"The target size {text!r} is no number of GiB, nor a size such as 30GB or 500MiB."
        ) from error
    # The bound keeps 1e-999999999 from becoming a gigabyte of zeros.
    if not (number.is_finite() and number > 0 and -_DIGITS < number.adjusted() < _DIGITS):
        raise PlanError(f"The target size {text!r} is no positive size.")
    return Fraction(number) * unit / GIB


def size_up(size: int) -> str:
    """A size as a target, rounded up to four digits."""
    unit = next((name for name in ("GiB", "MiB") if size >= SIZE_UNITS[name.upper()]), "KiB")
    digits = Context(prec=4, rounding=ROUND_CEILING)
    number = digits.divide(Decimal(size), Decimal(SIZE_UNITS[unit.upper()]))
    return f"{number.normalize():f}{unit}"


@dataclass(frozen=True, slots=True)
class _LinearSize:
    """What a target measures, linear in the experts that each layer loses."""

    full_size: int  # of the model
    counts: tuple[int, ...]  # experts of each sparse layer
    each: tuple[int, ...]  # size of one expert of each of them, with its rows of the router
    heads: int  # prediction heads with experts, dropped when the number of experts changes
    copied: int  # the head that an export writes beside its embedding; no extra parameters

    @classmethod
    def of(cls, model: MoEModel, target: SizeTarget) -> "_LinearSize":
        tensors, counts = tensors_of(model), [layer.num_experts for layer in model.layers]
        size = target.measure
        located = zip(tensors.experts.values(), tensors.routers.values(), counts, strict=True)
        each = [size(experts.sum(0) + n * router) // n for experts, router, n in located]
        heads = size(tensors.heads) if tensors.heads_have_experts else 0
        copied = size(tensors.own_head) if target.kind != "params" else 0
        return cls(size(tensors.total), tuple(counts), tuple(each), heads, copied)

    @property
    def is_even(self) -> bool:
        """Whether the size does not depend on which layers the experts go from."""
        return len(set(self.each)) == 1 and not self.heads

    def after(self, removed: Sequence[int]) -> int:
        """What is left after removing this many experts from each layer."""
        reduction = sum(n * size for n, size in zip(removed, self.each, strict=True))
        most = max(count - n for count, n in zip(self.counts, removed, strict=True))
        heads = self.heads if any(count != most for count in self.counts) else 0
        return self.full_size + (self.copied if any(removed) else 0) - reduction - heads


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
