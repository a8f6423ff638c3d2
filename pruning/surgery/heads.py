"""Prediction heads (MTP) of an export, tensor by tensor; the choice is made in `pruning.heads`."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from analysis.criteria import get_criterion
from analysis.drain import drain
from analysis.errors import ExportError, UnsupportedModelError
from analysis.families import Slot
from analysis.heads import Head, prediction_heads
from analysis.model import MoEModel, check_layers
from analysis.ranking.experts import rank_experts
from analysis.stats.tables import RunManifest, WeightStats, measured_model
from analysis.stats.weights import measure_weights
from pruning.allocation import Allocation
from pruning.atoms.widths import WidthPlan, widths_config
from pruning.heads import CRITERION, HeadChoice, HeadPlan, heads_depend_on
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
    heads = prediction_heads(model)
    with_experts = [head for head in heads if head.has_experts]
    changes, key = widths_config(widths, model) if widths else {}, model.family.width_key
    if key in changes and with_experts:
        if choice not in (None, HeadChoice.DROP):
            raise ExportError(
                f"The head {with_experts[0].name} has experts as wide as {key} says, which becomes "
                f"{changes[key]}; use --mtp drop, or the width mode per-layer."
            )
        return HeadPlan(HeadChoice.DROP)
    if not heads_depend_on(model, plan):
        dropped = choice is HeadChoice.DROP and bool(heads)
        return HeadPlan(HeadChoice.DROP if dropped else HeadChoice.KEEP)
    count = max(map(len, plan.kept.values()))
    if choice is HeadChoice.KEEP:
        raise ExportError(
            f"The head {with_experts[0].name} has experts that config.json counts by the same key "
            f"as the others, so it cannot stay whole when {count} are kept; use --mtp drop, or "
            f"--mtp prune, which keeps {count} of its experts by {CRITERION}."
        )
    if choice is HeadChoice.PRUNE:
        return HeadPlan(choice, {h.name: _prune(h, model, count) for h in with_experts})
    return HeadPlan(HeadChoice.DROP)


def _prune(head: Head, model: MoEModel, count: int) -> dict[int, tuple[int, ...]]:
    """The kept experts of a head: the first `count` of each layer by its own weights."""
    alone = head.as_model(model)
    if not alone.layers:
        raise ExportError(
            f"The head {head.name} has experts under names that the family {model.family.label} "
            f"does not know, so they cannot be pruned; use --mtp drop."
        )
    try:
        check_layers(alone)
        table = drain(measure_weights(alone))
    except UnsupportedModelError as error:
        raise ExportError(
            f"The experts of the head {head.name} can only be ranked by their weights, and those "
            f"cannot be measured: {error} Or use --mtp drop."
        ) from error
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
