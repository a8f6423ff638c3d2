"""Budgets of neurons: how many go in all, and how many of those who compete with each other."""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from analysis.sparsity import as_percent, num_removed, parse_sparsity
from pruning.allocation import apportion
from pruning.budget import Budget
from pruning.constraints import Room, check_total

NEURONS = "neurons"


@dataclass(frozen=True, slots=True)
class Pool:
    """What competing neurons can lose together."""

    room: Room  # neurons of the pool, and how many of them can go
    slack: int = 0  # neurons by which its experts exceed the multiple that they are to keep


def pool_of(rooms: Sequence[Room]) -> Pool:
    """The pool of these experts: sums, since each gives and takes in the same steps."""
    step = rooms[0].step
    size, least, most = map(sum, zip(*((r.size, r.least, r.most) for r in rooms), strict=True))
    return Pool(Room(size, least, most, step), sum(room.size % step for room in rooms))


def atom_sparsity_budget(pools: Sequence[Pool], sparsity: str | Fraction) -> Budget:
    """B = the sum over pools of floor(rho * n), to the nearest number that can go.

    Experts keep multiples, so a share is taken to the nearest number that leaves multiples
    everywhere, the smaller of two; so is the sum, where constraints leave no other. `floors` are
    the shares.
    """
    rho = parse_sparsity(sparsity)
    exact, whole = [num_removed(pool.room.size, rho) for pool in pools], _whole(pools)
    shares = []
    for pool, gone in zip(pools, exact, strict=True):
        # The nearest that leaves multiples everywhere, whatever the constraints besides.
        anywhere = Room(pool.room.size, pool.slack, pool.room.size, pool.room.step)
        shares.append(anywhere.nearest(gone))
    if not any(whole.least <= wanted <= whole.most for wanted in (sum(exact), sum(shares))):
        check_total(sum(exact), [whole], NEURONS)
    if len(pools) == 1:  # no other pool to balance with
        shares = [whole.nearest(exact[0])]
    total = whole.nearest(sum(shares))
    return Budget(total, "sparsity", str(sparsity).strip(), tuple(shares))


def _whole(pools: Sequence[Pool]) -> Room:
    return pool_of([pool.room for pool in pools]).room


def atom_count_budget(pools: Sequence[Pool], count: int) -> Budget:
    """B itself."""
    check_total(count, [_whole(pools)], NEURONS)
    return Budget(count, "count", str(count))


def reachable_totals(pools: Sequence[Pool]) -> range:
    """Every B that can be spent exactly."""
    whole = _whole(pools)
    return range(whole.least, whole.most + 1, whole.step)


def shares_of(pools: Sequence[Pool], budget: Budget) -> tuple[int, ...]:
    """How many neurons each pool loses; they sum to B.

    The shares of a sparsity, where every pool can lose its own. Otherwise B is spread in
    proportion to the pools' neurons, by largest remainder: what one cannot lose others do.
    """
    rooms = [pool.room for pool in pools]
    floors = budget.floors
    if len(floors) == len(rooms) and sum(floors) == budget.total:
        pairs = zip(rooms, floors, strict=True)
        if all(room.allows(gone) for room, gone in pairs):
            return floors
    # A pool without neurons, which an export may have left, has no room either.
    return apportion(budget.total, [max(room.size, 1) for room in rooms], rooms, NEURONS)


def budget_note(pools: Sequence[Pool], budget: Budget) -> str | None:
    """What a person should know of a sparsity that could not be met to the neuron."""
    if budget.kind != "sparsity":
        return None
    size, rho = sum(pool.room.size for pool in pools), parse_sparsity(budget.asked)
    exact = sum(num_removed(pool.room.size, rho) for pool in pools)
    if exact == budget.total:
        return None
    return (
        f"{budget.asked} is {exact} of {size} neurons, which cannot go exactly; the nearest that "
        f"can went: {budget.total} ({as_percent(budget.total, size)})."
    )
