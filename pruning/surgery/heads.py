"""Prediction heads (MTP) of an export, tensor by tensor; the choice is made in `pruning.heads`."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from analysis.criteria import get_criterion
from analysis.drain import drain
from analysis.errors import CheckpointError, ExportError, PlanError, UnsupportedModelError
from analysis.families import Slot
from analysis.heads import Head, prediction_heads
from analysis.model import MoEModel, check_layers
from analysis.ranking.experts import rank_experts
from analysis.stats.tables import RunManifest, WeightStats, measured_model
from analysis.stats.weights import check_measurable, measure_weights
from pruning.allocation import Allocation
from pruning.heads import CRITERION, HeadChoice, HeadPlan, heads_depend_on
from pruning.neurons.widths import WidthMode, WidthPlan, plan_widths, widths_config
from pruning.plan import PruningPlan, model_ref, select_experts


def plan_heads(
    model: MoEModel,
    plan: PruningPlan,
    choice: HeadChoice | None = None,
    widths: WidthPlan | None = None,
) -> HeadPlan:
    """What to do with prediction heads under a complete plan, see `fit_plan`.

    By default they are kept if no count or width changes or no head has experts, else dropped.
    `widths` are for plans that remove neurons.
    """
    decided = _decided(model, plan, choice, widths)
    if not isinstance(decided, HeadChoice):
        raise ExportError(f"{decided}; use {' or '.join(_instead(model, plan, choice, widths))}.")
    if decided is not HeadChoice.PRUNE:
        return HeadPlan(decided)
    count = max(map(len, plan.kept.values()))
    heads = (head for head in prediction_heads(model) if head.has_experts)
    return HeadPlan(decided, {head.name: _prune(head, model, count) for head in heads})


def _decided(
    model: MoEModel, plan: PruningPlan, choice: HeadChoice | None, widths: WidthPlan | None
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
        return why_not_pruned(model) or choice
    return HeadChoice.DROP


def _instead(
    model: MoEModel, plan: PruningPlan, refused: HeadChoice | None, widths: WidthPlan | None
) -> Iterator[str]:
    """What works in place of a choice that is impossible."""
    yield "--mtp drop"
    if (
        refused is HeadChoice.KEEP
        and _decided(model, plan, HeadChoice.PRUNE, widths) is HeadChoice.PRUNE
    ):
        count = max(map(len, plan.kept.values()))
        yield f"--mtp prune, which keeps {count} of its experts by {CRITERION}"
    if widths is None or widths.choice.mode is not WidthMode.UNIFORM:
        return
    try:
        other = plan_widths(model, plan, replace(widths.choice, mode=WidthMode.PER_LAYER))
    except PlanError:
        return
    if isinstance(_decided(model, plan, refused, other), HeadChoice):
        yield "--width-mode per-layer"


def why_not_pruned(model: MoEModel) -> str:
    """Why prediction heads cannot be pruned by their weights; empty if they can."""
    heads = (head for head in prediction_heads(model) if head.has_experts)
    return next(filter(None, (_unprunable(head, model) for head in heads)), "")


def _unprunable(head: Head, model: MoEModel) -> str:
    """Why the experts of a head cannot be pruned by their weights; empty if they can."""
    alone = head.as_model(model)
    if not alone.layers:
        return (
            f"The head {head.name} has experts under names that the family {model.family.label} "
            "does not know, so they cannot be pruned"
        )
    if any(item.slot.holds_ids for items in head.located.values() for item in items):
        return f"The head {head.name} looks experts up by token id, so they cannot be pruned"
    try:
        check_layers(alone)
        check_measurable(alone)
    except (CheckpointError, UnsupportedModelError) as error:
        return (
            f"The experts of the head {head.name} can only be ranked by their weights, and those "
            f"cannot be measured: {str(error).rstrip('.')}"
        )
    return ""


def _prune(head: Head, model: MoEModel, count: int) -> dict[int, tuple[int, ...]]:
    """The kept experts of a head: the first `count` of each layer by its own weights."""
    alone = head.as_model(model)
    table = drain(measure_weights(alone))
    criterion = get_criterion(CRITERION)
    manifest = RunManifest("weights", head.name, "", measured_model(alone), (), {}, {})
    ranking = rank_experts(criterion, WeightStats(manifest, table), "applied")
    allocation = Allocation(alone.layers, (count,) * len(alone.layers))
    return dict(select_experts(ranking, allocation, model=model_ref(model)).kept)


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
    found = prediction_heads(model)
    if heads.choice is HeadChoice.DROP:
        return HeadSlots(frozenset(name for head in found for name in head.tensors))
    return HeadSlots(
        cut={
            item.entry.name: (item.slot, ids)
            for head in found
            for layer, ids in heads.kept.get(head.name, {}).items()
            for item in head.located[layer]
        }
    )
