"""Budgets of neurons: how many each expert may lose, how many go in all, and from which pool."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from analysis.errors import PlanError
from analysis.families import MoELayer
from analysis.sparsity import as_percent, num_removed, parse_sparsity
from pruning.allocation import apportion, check_kept
from pruning.budget import Budget
from pruning.constraints import Constraints, Room, check_total, rooms_of

ExpertKey = tuple[int, int]  # decoder index and id of an expert


def kept_experts(
    layers: Sequence[MoELayer], constraints: Constraints
) -> dict[int, tuple[int, ...]]:
    """Layer -> experts that stay, for the layers that lose whole experts."""
    if constraints.fixed or constraints.locked:
        raise PlanError(
            "Layers cannot be set or locked by hand in a plan of neurons; protect layers, pin or "
            "drop experts, or name the neurons that stay in a file."
        )
    # The multiple and the floor count neurons here; all other constraints hold for experts too.
    rooms_of(layers, replace(constraints, multiple_of=1, floor=0))
    kept = {}
    for layer in layers:
        if gone := constraints.dropped.get(layer.index):
            kept[layer.index] = tuple(e for e in range(layer.num_experts) if e not in gone)
            check_kept(layer, kept[layer.index])
    return kept


def neuron_rooms(
    widths: Mapping[int, Sequence[int]], constraints: Constraints
) -> dict[ExpertKey, Room]:
    """How many neurons each expert may lose; `widths` are layer -> neurons of each expert.

    An expert keeps a multiple of `multiple_of` and at least the floor. It keeps all if it is pinned
    or its layer is protected, and none if it is dropped.
    """
    rooms, step = {}, constraints.multiple_of
    for layer, expert, width in [
        (n, e, w) for n in sorted(widths) for e, w in enumerate(widths[n])
    ]:
        floor, what = min(constraints.floor, width), f"Expert {expert} of layer {layer}"
        low, high = -(-floor // step) * step, width // step * step
        if expert in constraints.dropped.get(layer, ()):
            low = high = 0
        elif layer in constraints.protected or expert in constraints.pinned.get(layer, ()):
            low = high = width
        elif 0 < width < step:
            raise PlanError(
                f"{what} has {width} neurons and cannot keep a multiple of {step}; the largest "
                f"multiple that works is {width}."
            )
        elif low > high:
            raise PlanError(
                f"{what} has {width} neurons, so it cannot keep {floor} or more in multiples of "
                f"{step}; the largest floor that works is {high}."
            )
        rooms[layer, expert] = Room(width, width - high, width - low, step)
    return rooms


NEURONS = "neurons"


@dataclass(frozen=True, slots=True)
class Pool:
    """A group of experts whose neurons compete with each other."""

    room: Room  # neurons of the pool, and how many of them it may lose
    slack: int = 0  # neurons by which its experts exceed the multiple they must keep


def pool_of(rooms: Sequence[Room]) -> Pool:
    """The pool of these experts, by sums: all move in the same steps."""
    step = rooms[0].step
    size, least, most = map(sum, zip(*((r.size, r.least, r.most) for r in rooms), strict=True))
    return Pool(Room(size, least, most, step), sum(room.size % step for room in rooms))


def neuron_sparsity_budget(pools: Sequence[Pool], sparsity: str | Fraction) -> Budget:
    """B = the sum over pools of floor(rho * n), rounded to what can be removed.

    Each pool's share is rounded to the nearest number that leaves multiples in every expert, of two
    the smaller, and so is the sum where constraints require it. `floors` are the shares.
    """
    rho = parse_sparsity(sparsity)
    exact, whole = [num_removed(pool.room.size, rho) for pool in pools], _whole(pools)
    # Multiples are all that restricts a single share; the other constraints restrict the sum.
    shares = [
        Room(pool.room.size, pool.slack, pool.room.size, pool.room.step).nearest(gone)
        for pool, gone in zip(pools, exact, strict=True)
    ]
    if not any(whole.least <= wanted <= whole.most for wanted in (sum(exact), sum(shares))):
        check_total(sum(exact), [whole], NEURONS)
    if len(pools) == 1:  # no other pool can compensate
        shares = [whole.nearest(exact[0])]
    total = whole.nearest(sum(shares))
    return Budget(total, "sparsity", str(sparsity).strip(), tuple(shares))


def _whole(pools: Sequence[Pool]) -> Room:
    return pool_of([pool.room for pool in pools]).room


def neuron_count_budget(pools: Sequence[Pool], count: int) -> Budget:
    """A budget of exactly this many neurons."""
    check_total(count, [_whole(pools)], NEURONS)
    return Budget(count, "count", str(count))


def reachable_totals(pools: Sequence[Pool]) -> range:
    """Every B that can be spent exactly."""
    whole = _whole(pools)
    return range(whole.least, whole.most + 1, whole.step)


def shares_of(pools: Sequence[Pool], budget: Budget) -> tuple[int, ...]:
    """How many neurons each pool loses; they sum to B.

    These are the shares of a sparsity if every pool has room for its own. Otherwise B is spread in
    proportion to the pools' neurons, by largest remainder; other pools make up for a full one.
    """
    rooms, floors = [pool.room for pool in pools], budget.floors
    fits = len(floors) == len(rooms) and sum(floors) == budget.total
    if fits and all(map(Room.allows, rooms, floors)):
        return floors
    # A pool without neurons, as an export may leave, has no room either.
    return apportion(budget.total, [max(room.size, 1) for room in rooms], rooms, NEURONS)


def budget_note(pools: Sequence[Pool], budget: Budget) -> str | None:
    """A note on a sparsity that could not be met to the neuron."""
    if budget.kind != "sparsity":
        return None
    size, rho = sum(pool.room.size for pool in pools), parse_sparsity(budget.asked)
    if (exact := sum(num_removed(pool.room.size, rho) for pool in pools)) == budget.total:
        return None
    return (
        f"{budget.asked} is {exact} of {size} neurons, which cannot go exactly; the nearest that "
        f"can went: {budget.total} ({as_percent(budget.total, size)})."
    )
