"""Uniform: the same fraction of every layer."""

from collections.abc import Sequence
from decimal import Decimal
from fractions import Fraction

from analysis.errors import PlanError
from analysis.families import MoELayer
from analysis.sparsity import as_percent
from pruning.allocation import Allocation, count_problem
from pruning.apportion import apportion
from pruning.budget import Budget, sparsity_budget
from pruning.constraints import Constraints, Room, rooms_of
from pruning.schedules.base import Evidence, Spending, Turn, allocation_of


def uniform(
    layers: Sequence[MoELayer],
    budget: Budget | str | Fraction | Decimal | float,
    constraints: Constraints | None = None,
) -> Allocation:
    """Remove floor(rho * n) experts from every layer.

    A budget without rho (a number, a target size) goes in proportion to n, by largest remainder.
    So does the rest where constraints keep a layer from its share.

    Args:
        layers: the sparse layers.
        budget: or rho itself, see `sparsity_budget`.
        constraints: what else to respect.

    Raises:
        PlanError: the sparsity cannot be read, or a layer would keep a number of experts that it
            cannot keep; names the nearest that it can.
    """
    given = budget if isinstance(budget, Budget) else sparsity_budget(layers, budget)
    limits = constraints or Constraints()
    turn = Turn(Spending(tuple(layers), given, limits), rooms_of(layers, limits), Evidence())
    return allocation_of(layers, spread_evenly(turn))


def spread_evenly(turn: Turn) -> tuple[int, ...]:
    """See `uniform`."""
    floors = turn.spending.budget.floors
    if floors and all(room.allows(gone) for room, gone in zip(turn.rooms, floors, strict=True)):
        return floors
    if floors:
        _check_shares(turn, floors)
    return apportion(turn.spending.budget.total, turn.sizes, turn.rooms)


def _check_shares(turn: Turn, floors: Sequence[int]) -> None:
    """Refuse where the share itself is at fault, and not what a person fixed of some layer."""
    for layer, room, gone in zip(turn.spending.layers, turn.rooms, floors, strict=True):
        if layer.index not in turn.spending.constraints.held and not room.allows(gone):
            keep = layer.num_experts - gone
            raise PlanError(count_problem(layer, keep) or _step_problem(layer, room, keep))


def _step_problem(layer: MoELayer, room: Room, keep: int) -> str:
    numbers = range(room.size - room.most, room.size - room.least + 1, room.step)
    near = [n for n in numbers if n < keep][-1:] + [n for n in numbers if n > keep][:1]
    shares = [f"{n} ({as_percent(room.size - n, room.size)} removed)" for n in near]
    is_between = numbers[0] < keep < numbers[-1]
    rule = f"a multiple of {room.step}" if is_between else f"{numbers[0]} to {numbers[-1]}"
    return (
        f"Layer {layer.index} would keep {keep} of {room.size} experts, but layers are to keep "
        f"{rule}; nearest: {' or '.join(shares)}."
    )
