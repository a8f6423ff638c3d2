"""Budgets of neurons: how many each expert may lose, how many go in all, and from which pool."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import TYPE_CHECKING

from analysis.errors import PlanError
from analysis.numbers.sparsity import num_removed, parse_sparsity
from pruning.plan.allocation import apportion, check_kept
from pruning.plan.budget import Budget, rounded_shares
from pruning.plan.constraints import Constraints, Room, check_total, rooms_of, sum_of

if TYPE_CHECKING:
    from analysis.families.base import MoELayer

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
        if dropped := constraints.dropped.get(layer.index):
            kept[layer.index] = tuple(e for e in range(layer.num_experts) if e not in dropped)
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


def neuron_sparsity_budget(pools: Sequence[Room], sparsity: str | Fraction) -> Budget:
    """B = the sum over pools of floor(rho * n), rounded down to what can go.

    A pool is the room of experts whose neurons compete. See `rounded_shares`.
    """
    rho, total_room = parse_sparsity(sparsity), sum_of(pools)
    exact = [num_removed(pool.size, rho) for pool in pools]
    # Multiples are all that restricts a single share; the other constraints restrict the sum.
    rooms = [Room(pool.size, pool.least % pool.step, pool.size, pool.step) for pool in pools]
    total, shares = rounded_shares(exact, rooms, total_room)
    check_total(total, [total_room], NEURONS)
    return Budget(total, "sparsity", str(sparsity).strip(), shares)


def neuron_count_budget(pools: Sequence[Room], count: int) -> Budget:
    """A budget of exactly this many neurons."""
    check_total(count, [sum_of(pools)], NEURONS)
    return Budget(count, "count", str(count))


def reachable_totals(pools: Sequence[Room]) -> range:
    """Every B that can be spent exactly."""
    room = sum_of(pools)
    return range(room.least, room.most + 1, room.step)


def shares_of(pools: Sequence[Room], budget: Budget) -> tuple[int, ...]:
    """How many neurons each pool loses; they sum to B.

    These are the shares of a sparsity if every pool has room for its own. Otherwise B is spread in
    proportion to the pools' neurons, by largest remainder; other pools make up for a full one.
    """
    floors = budget.floors
    fits = len(floors) == len(pools) and sum(floors) == budget.total
    if fits and all(map(Room.allows, pools, floors)):
        return floors
    # A pool without neurons, as an export may leave, has no room either.
    return apportion(budget.total, [max(pool.size, 1) for pool in pools], pools, NEURONS)
