"""Shares of a budget: the same fraction of every layer, or more of some (arXiv:2603.06003)."""

from collections.abc import Sequence
from decimal import Decimal
from fractions import Fraction
from typing import Literal, get_args

from analysis.errors import PlanError
from analysis.families import MoELayer
from analysis.sparsity import as_percent, parse_sparsity
from pruning.allocation import Allocation, apportion, count_problem, count_reason
from pruning.budget import Budget, sparsity_budget
from pruning.constraints import Constraints, Room, rooms_of
from pruning.schedules.base import Evidence, Spending, Turn, allocation_of


def uniform(
    layers: Sequence[MoELayer],
    budget: Budget | str | Fraction | Decimal | float,
    constraints: Constraints | None = None,
) -> Allocation:
    """Remove floor(rho * n) experts from every layer; `budget` may be rho itself.

    A budget without rho (a number, a target size) is spread in proportion to n, by largest
    remainder, and so is every budget if constraints keep a layer from its share.
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
    """Refuse a share that some layer cannot lose, unless a constraint on that layer is why."""
    for layer, room, gone in zip(turn.spending.layers, turn.rooms, floors, strict=True):
        if layer.index not in turn.spending.constraints.held and not room.allows(gone):
            keep = layer.num_experts - gone
            alike = {(each.num_experts, room) for each, room in _free(turn)}
            if len(alike) == 1 and len(turn.rooms) == len(_free(turn)):
                if problem := count_problem(layer, keep):
                    raise PlanError(problem)
                numbers = _numbers(room)
                near = [n for n in numbers if n < keep][-1:] + [n for n in numbers if n > keep][:1]
                shares = [f"{n} ({as_percent(room.size - n, room.size)} sparsity)" for n in near]
                reason = _step_reason(layer, room, keep)
                raise PlanError(f"{reason}; nearest: {' or '.join(shares)}.")
            why = count_reason(layer, keep) or _step_reason(layer, room, keep)
            raise PlanError(f"{why}; {_what_works(turn)}.")


def _free(turn: Turn) -> list[tuple[MoELayer, Room]]:
    """Layers without fixed counts, and their rooms."""
    pairs = zip(turn.spending.layers, turn.rooms, strict=True)
    held = turn.spending.constraints.held
    return [(layer, room) for layer, room in pairs if layer.index not in held]


def _what_works(turn: Turn) -> str:
    """The nearest sparsities that suit every layer; without any, the nearest number of experts."""
    wanted, layers = turn.spending.budget.total, turn.spending.layers
    named = {as_percent(gone, n) for n in turn.sizes for gone in range(n)}
    totals = {
        sparsity_budget(layers, text).total: text
        for text in sorted(named, key=parse_sparsity, reverse=True)
        if _suits(turn, sparsity_budget(layers, text))
    }
    below = [totals[total] for total in sorted(totals) if total <= wanted][-1:]
    above = [totals[total] for total in sorted(totals) if total > wanted][:1]
    if below or above:
        return f"nearest sparsity that suits every layer: {' or '.join(below + above)}"
    least, most = _range(turn)
    step = turn.rooms[0].step
    near = least + round((min(max(wanted, least), most) - least) / step) * step
    experts = "1 expert" if near == 1 else f"{near} experts"
    return f"no sparsity suits every layer, but {experts} can go in all (--remove {near})"


def _range(turn: Turn) -> tuple[int, int]:
    """The fewest and most experts that all layers together can lose."""
    return sum(room.least for room in turn.rooms), sum(room.most for room in turn.rooms)


def _suits(turn: Turn, budget: Budget) -> bool:
    """Whether every layer, fixed ones aside, can lose its share of a sparsity."""
    shares = dict(zip((layer.index for layer in turn.spending.layers), budget.floors, strict=True))
    least, most = _range(turn)
    step = turn.rooms[0].step
    return (
        all(room.allows(shares[layer.index]) for layer, room in _free(turn))
        and least <= budget.total <= most
        and (budget.total - least) % step == 0
    )


def _step_reason(layer: MoELayer, room: Room, keep: int) -> str:
    numbers = _numbers(room)
    is_between = numbers[0] < keep < numbers[-1]
    rule = f"a multiple of {room.step}" if is_between else f"{numbers[0]} to {numbers[-1]}"
    would = f"Layer {layer.index} would keep {keep} of {room.size} experts"
    return f"{would}, but layers are to keep {rule}"


def _numbers(room: Room) -> range:
    """Numbers of experts that a layer can keep."""
    return range(room.size - room.most, room.size - room.least + 1, room.step)


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


def spread_pattern(pattern: Pattern, turn: Turn) -> tuple[int, ...]:
    """The budget in proportion to `pattern_weights`, by largest remainder, see `apportion`."""
    weights = pattern_weights(pattern, len(turn.rooms))
    return apportion(turn.spending.budget.total, weights, turn.rooms)
