"""Budgets: how many experts go in all, from a sparsity, a number or a target size."""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import ROUND_CEILING, Context, Decimal, InvalidOperation
from fractions import Fraction
from typing import Any, Literal

from analysis.arrays import IntArray
from analysis.errors import PlanError
from analysis.families import MoELayer
from analysis.model import MoEModel
from analysis.sparsity import num_removed, parse_sparsity
from pruning.allocation import count_problem
from pruning.apportion import apportion
from pruning.constraints import Constraints, rooms_of
from pruning.sizes import format_bytes, tensors_of

BudgetKind = Literal["sparsity", "count", "size", "params", "file"]
TargetDtype = Literal["own", "bfloat16"]
GIB = 1 << 30
BFLOAT16_BYTES = 2
_DIGITS = 100


@dataclass(frozen=True, slots=True)
class Budget:
    """Experts removed from all layers together: B, the same for every schedule."""

    total: int  # B
    kind: BudgetKind  # how it was given
    asked: str  # what was given, as text
    # What a uniform schedule removes from each layer; empty unless a sparsity was given, because
    # other budgets need not divide.
    floors: tuple[int, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON."""
        return {"kind": self.kind, "asked": self.asked, "removed": self.total}


def sparsity_budget(
    layers: Sequence[MoELayer], sparsity: str | Fraction | Decimal | float
) -> Budget:
    """B = sum over layers of floor(rho * n).

    rho is such as "0.5" or "50%". A float counts by its shortest decimal form, so 0.55 is 55/100
    and not the binary number next to it.
    """
    rho = parse_sparsity(sparsity if isinstance(sparsity, Fraction) else str(sparsity))
    floors = tuple(num_removed(layer.num_experts, rho) for layer in layers)
    return Budget(sum(floors), "sparsity", str(sparsity).strip(), floors)


def count_budget(layers: Sequence[MoELayer], count: int) -> Budget:
    """B itself."""
    experts = sum(layer.num_experts for layer in layers)
    if not 0 <= count < experts:
        raise PlanError(
            f"{count} of {experts} experts cannot be removed; give a number from 0 to "
            f"{experts - 1}."
        )
    return Budget(count, "count", str(count))


# A number of experts removed from all layers together -> how many from each.
Spread = Callable[[int], Sequence[int]]


def size_budget(
    model: MoEModel,
    target_gib: str,
    dtype: TargetDtype = "own",
    constraints: Constraints | None = None,
    *,
    spread: Spread | None = None,
) -> Budget:
    """The smallest B with which the weights take at most `target_gib` GiB (2^30 bytes) on disk.

    Counts tensors, as `pruning.sizes` does: not the headers of files, nor the tokenizer. `dtype` is
    the checkpoint's own dtypes, or 2 bytes for each parameter. `spread` is what the schedule
    would take from each layer: it matters only where experts of some layers are larger than those
    of others; uniform by default.
    """
    target = parse_gib(target_gib) * GIB
    sizes = _LinearSize.of(model, dtype)
    rooms = rooms_of(model.layers, constraints or Constraints())
    least, most = sum(room.least for room in rooms), sum(room.most for room in rooms)
    reachable = range(least, most + 1, rooms[0].step)

    def evenly(total: int) -> Sequence[int]:
        return apportion(total, [layer.num_experts for layer in model.layers], rooms)

    taken = evenly if spread is None or sizes.is_even else spread
    smallest = sizes.after(taken(reachable[-1]))
    if smallest > target:
        raise PlanError(
            f"{model.name} cannot shrink to {target_gib} GiB by removing experts: {reachable[-1]} "
            f"of {model.num_experts} can go, which leaves {format_bytes(smallest)}; the smallest "
            f"target that works is {gib_up(smallest)}."
        )
    if sizes.is_even:
        # Weights only shrink as more goes, so the first number that fits is the smallest.
        fits = bisect_left(reachable, True, key=lambda n: sizes.after(taken(n)) <= target)
    else:
        # A schedule may take more small experts in place of fewer large ones.
        fits = next(n for n, total in enumerate(reachable) if sizes.after(taken(total)) <= target)
    named = f"{target_gib.strip()} GiB{'' if dtype == 'own' else ' ' + dtype}"
    return Budget(reachable[fits], "size", named)


def parse_gib(text: str) -> Fraction:
    """A positive decimal number."""
    try:
        number = Decimal(text.strip())
    except InvalidOperation as error:
        raise PlanError(f"The target size {text!r} is no number of GiB.") from error
    # The bound keeps 1e-999999999 from becoming a gigabyte of zeros.
    if not (number.is_finite() and number > 0 and -_DIGITS < number.adjusted() < _DIGITS):
        raise PlanError(f"The target size {text!r} is no positive number of GiB.")
    return Fraction(number)


def gib_up(size: int) -> str:
    """A size as a target that it fits into: rounded up to four digits."""
    digits = Context(prec=4, rounding=ROUND_CEILING)
    return f"{digits.divide(Decimal(size), Decimal(GIB)).normalize():f}"


@dataclass(frozen=True, slots=True)
class _LinearSize:
    """Bytes of the weights: each expert of a layer takes equally many with it."""

    whole: int  # bytes with every expert
    counts: tuple[int, ...]  # experts of each sparse layer
    each: tuple[int, ...]  # bytes of one expert of each of them, with its rows of the router
    # Bytes of prediction heads with experts, which go when the number of experts changes.
    heads: int

    @classmethod
    def of(cls, model: MoEModel, dtype: TargetDtype) -> "_LinearSize":
        tensors, counts = tensors_of(model), [layer.num_experts for layer in model.layers]

        def size(both: IntArray) -> int:
            return int(both[0] if dtype == "own" else both[1] * BFLOAT16_BYTES)

        located = zip(tensors.experts.values(), tensors.routers.values(), counts, strict=True)
        each = [size(experts.sum(0) + n * router) // n for experts, router, n in located]
        heads = size(tensors.heads) if tensors.heads_have_experts else 0
        return cls(size(tensors.whole), tuple(counts), tuple(each), heads)

    @property
    def is_even(self) -> bool:
        """Whether it does not matter from which layer an expert goes."""
        return len(set(self.each)) == 1 and not self.heads

    def after(self, removed: Sequence[int]) -> int:
        """Bytes when so many experts of each layer are gone."""
        gone = sum(n * size for n, size in zip(removed, self.each, strict=True))
        most = max(count - n for count, n in zip(self.counts, removed, strict=True))
        heads = self.heads if any(count != most for count in self.counts) else 0
        return self.whole - gone - heads


def uniform_neighbours(layers: Sequence[MoELayer], total: int) -> tuple[int, ...]:
    """The totals of uniform plans nearest to `total`: `total` itself, or one below and one above.

    Only those that leave every layer enough experts for its router.
    """
    widest = max(layer.num_experts for layer in layers)
    totals = []
    for part in range(widest):
        floors = [num_removed(layer.num_experts, Fraction(part, widest)) for layer in layers]
        kept = [n.num_experts - gone for n, gone in zip(layers, floors, strict=True)]
        if all(count_problem(n, keep) is None for n, keep in zip(layers, kept, strict=True)):
            totals.append(sum(floors))
    if total in totals:
        return (total,)
    below = [number for number in totals if number < total][-1:]
    above = [number for number in totals if number > total][:1]
    return (*below, *above)
