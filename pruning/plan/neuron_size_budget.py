"""Budgets of neurons from a target size, and the widths that a budget leaves."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from pruning.plan.budget import Budget, SizeTarget
from pruning.plan.neuron_budget import NEURONS, ExpertKey, reachable_totals
from pruning.plan.sizes import total_size, width_sizes
from pruning.plan.widths import WidthChoice

if TYPE_CHECKING:
    from analysis.model.moe_model import MoEModel
    from pruning.plan.neuron_selection import Contest


def neuron_size_budget(
    contest: Contest,
    model: MoEModel,
    target: SizeTarget,
    choice: WidthChoice | None = None,
    experts: Mapping[int, Sequence[int]] | None = None,
) -> Budget:
    """The smallest B that meets the target; `experts` stay in layers that lose whole experts.

    A size on disk includes the zeros that fill up experts in the width mode `choice`. A share of
    the parameters (HEAPr, Fig. 2) does not: it is of all numbers in all tensors of the checkpoint,
    including embeddings, attention, dense layers, routers, shared experts and prediction heads.
    Removed neurons take their rows, columns and bias entries, dropped experts their router rows.
    """
    if nothing := target.nothing(contest.pools, NEURONS):
        return nothing
    stored = None if target.kind == "params" else choice or WidthChoice()
    totals = reachable_totals(contest.pools)

    def size_after(total: int) -> int:
        removed = contest.removed(Budget(total, "size", ""))
        widths = widths_left(contest, removed, experts or {})
        return target.measure(total_size(width_sizes(model, widths, stored).disk))

    smallest, most = size_after(totals[-1]), target.most(model)
    if smallest > most:
        can_go = f"{totals[-1]} of {contest.size} neurons"
        can_go = f"in the width mode {stored.mode} {can_go}" if stored else can_go
        raise target.refusal(model, smallest, can_go)
    first = bisect_left(totals, True, key=lambda total: size_after(total) <= most)
    # Where experts of a pool differ in width, largest remainders may widen one again.
    while size_after(totals[first]) > most:
        first += 1
    least = target.least(
        model,
        size_after(totals[first]),
        size_after(totals[first - 1]) if first else None,
        f"{totals[first]} of {contest.size} neurons",
    )
    return target.budget(totals[first], words=f", {stored.mode}" if stored else "", least=least)


def widths_left(
    contest: Contest, removed: Mapping[ExpertKey, int], stays: Mapping[int, Sequence[int]]
) -> dict[int, dict[int, int]]:
    """Layer -> expert that stays -> neurons it keeps, after `Contest.removed`.

    `stays` are the experts that stay in layers that lose whole experts.
    """
    widths: dict[int, dict[int, int]] = {}
    for (layer, expert), count in removed.items():
        if expert in stays.get(layer, (expert,)):
            widths.setdefault(layer, {})[expert] = contest.rooms[layer, expert].size - count
    return widths
