"""Prediction heads (MTP) of an export, tensor by tensor; chosen in `pruning.plan.heads`."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from analysis.errors import ExportError, PlanError
from analysis.families.base import Slot
from analysis.model.heads import prediction_heads
from analysis.model.moe_model import MoEModel
from pruning.plan.heads import HeadChoice, HeadPlan, HeadRanking, heads_depend_on
from pruning.plan.plan import PruningPlan
from pruning.plan.widths import WidthMode, WidthPlan, plan_widths, widths_config


def plan_heads(
    model: MoEModel,
    plan: PruningPlan,
    choice: HeadChoice | None = None,
    widths: WidthPlan | None = None,
    ranking: HeadRanking | None = None,
) -> HeadPlan:
    """What to do with prediction heads under a complete plan, see `fit_plan`.

    By default they are kept if no count or width changes or no head has experts, else dropped.
    `widths` are for plans that remove neurons; without `ranking` no head can be pruned.
    """
    decision = _decide(model, plan, choice, widths, ranking)
    if not isinstance(decision, HeadChoice):
        instead = " or ".join(_alternatives(model, plan, choice, widths, ranking))
        raise ExportError(f"{decision}; use {instead}.")
    if decision is not HeadChoice.PRUNE or ranking is None:  # without one, `_decide` refuses
        return HeadPlan(decision)
    count = max(map(len, plan.kept.values()))
    return HeadPlan(decision, ranking.kept(model, count), ranking.criterion, ranking.runs)


def _decide(
    model: MoEModel,
    plan: PruningPlan,
    choice: HeadChoice | None,
    widths: WidthPlan | None,
    ranking: HeadRanking | None,
) -> HeadChoice | str:
    """What happens to the heads, or why the choice is impossible."""
    heads = prediction_heads(model)
    with_experts = [head for head in heads if head.has_experts]
    changes, key = widths_config(widths, model) if widths else {}, model.family.width_key
    if key in changes and with_experts:
        if choice in (None, HeadChoice.DROP):
            return HeadChoice.DROP
        return (
            f"The head {with_experts[0].name} has experts as wide as {key} says, which becomes "
            f"{changes[key]}"
        )
    if not heads_depend_on(model, plan):
        return HeadChoice.DROP if choice is HeadChoice.DROP and heads else HeadChoice.KEEP
    if choice is HeadChoice.KEEP:
        return (
            f"The head {with_experts[0].name} has experts that config.json counts by the same key "
            "as the others, so it cannot stay whole when "
            f"{max(map(len, plan.kept.values()))} are kept"
        )
    if choice is HeadChoice.PRUNE:
        return why_not_pruned(model, ranking) or choice
    return HeadChoice.DROP


def _alternatives(
    model: MoEModel,
    plan: PruningPlan,
    refused: HeadChoice | None,
    widths: WidthPlan | None,
    ranking: HeadRanking | None,
) -> Iterator[str]:
    """What works in place of a choice that is impossible."""
    yield "--mtp drop"
    if (
        refused is HeadChoice.KEEP
        and _decide(model, plan, HeadChoice.PRUNE, widths, ranking) is HeadChoice.PRUNE
    ):
        count, by = max(map(len, plan.kept.values())), ranking.criterion if ranking else ""
        yield f"--mtp prune, which keeps {count} of its experts by {by}"
    if widths is None or widths.choice.mode is not WidthMode.UNIFORM:
        return
    try:
        other = plan_widths(model, plan, replace(widths.choice, mode=WidthMode.PER_LAYER))
    except PlanError:
        return
    if isinstance(_decide(model, plan, refused, other, ranking), HeadChoice):
        yield "--width-mode per-layer"


def why_not_pruned(model: MoEModel, ranking: HeadRanking | None) -> str:
    """Why prediction heads cannot be pruned; empty if they can."""
    for head in prediction_heads(model):
        if not head.has_experts:
            continue
        alone = head.as_model(model)
        if not alone.layers:
            return (
                f"The head {head.name} has experts under names that the family "
                f"{model.family.label} does not know, so they cannot be pruned"
            )
        if any(item.slot.holds_ids for items in head.located.values() for item in items):
            return f"The head {head.name} looks experts up by token id, so they cannot be pruned"
        if ranking is None:
            return f"Nothing ranks the experts of the head {head.name}"
        if refusal := ranking.refusal(head, alone):
            return refusal
    return ""


@dataclass(frozen=True, eq=False)
class HeadSlots:
    """What an export does with the tensors of heads."""

    dropped: frozenset[str] = frozenset()  # names
    # Name -> slot and kept experts, for tensors that lose experts.
    cut: Mapping[str, tuple[Slot, tuple[int, ...]]] = field(default_factory=dict)


def head_slots(model: MoEModel, heads: HeadPlan) -> HeadSlots:
    """A plan for heads, tensor by tensor."""
    if heads.choice is HeadChoice.KEEP:
        return HeadSlots()
    all_heads = prediction_heads(model)
    if heads.choice is HeadChoice.DROP:
        return HeadSlots(frozenset(name for head in all_heads for name in head.tensors))
    return HeadSlots(
        cut={
            item.entry.name: (item.slot, ids)
            for head in all_heads
            for layer, ids in heads.kept.get(head.name, {}).items()
            for item in head.located[layer]
        }
    )
