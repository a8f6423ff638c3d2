"""Prediction heads (MTP) of an export, tensor by tensor; the choice is made in `pruning.heads`."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from analysis.criteria import get_criterion
from analysis.drain import drain
from analysis.errors import ExportError, UnsupportedModelError
from analysis.families import Slot
from analysis.families.base import HEAD_KEYS
from analysis.heads import Head, prediction_heads
from analysis.model import MoEModel, check_layers
from analysis.ranking.experts import rank_experts
from analysis.stats.tables import RunManifest, WeightStats, measured_model
from analysis.stats.weights import measure_weights
from pruning.allocation import Allocation
from pruning.heads import CRITERION, HeadChoice, HeadPlan, heads_depend_on
from pruning.plan import PruningPlan, model_ref, select_experts
from pruning.surgery.config import json_file


def plan_heads(model: MoEModel, plan: PruningPlan, choice: HeadChoice | None = None) -> HeadPlan:
    """What to do with the heads of a checkpoint.

    Args:
        model: the source.
        plan: complete, see `fit_plan`.
        choice: None for the default: keep where no count changes or no head has experts, else
            drop.
    """
    heads = prediction_heads(model)
    if not heads_depend_on(model, plan):
        dropped = choice is HeadChoice.DROP and bool(heads)
        return HeadPlan(HeadChoice.DROP if dropped else HeadChoice.KEEP)
    with_experts = [head for head in heads if head.has_experts]
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
    """The experts of a head that stay: the first `count` of each layer by its own weights."""
    alone = head.as_model(model)
    advice = "use --mtp drop"
    if not alone.layers:
        raise ExportError(
            f"The head {head.name} has experts under names that the family {model.family.label} "
            f"does not know, so they cannot be pruned; {advice}."
        )
    try:
        check_layers(alone)
        table = drain(measure_weights(alone))
    except UnsupportedModelError as error:
        raise ExportError(
            f"The experts of the head {head.name} can only be ranked by their weights, and those "
            f"cannot be measured: {error} Or {advice}."
        ) from error
    criterion = get_criterion(CRITERION)
    manifest = RunManifest("weights", head.name, "", measured_model(alone), (), {}, {})
    ranking = rank_experts(criterion, WeightStats(manifest, table), "applied")
    allocation = Allocation(alone.layers, (count,) * len(alone.layers))
    return dict(select_experts(ranking, allocation, model=model_ref(model)).kept)


@dataclass(frozen=True, eq=False)
class HeadSlots:
    """Where the tensors of heads go.

    Args:
        dropped: names of tensors that the export leaves out.
        cut: name -> slot and kept experts of tensors that lose experts.
    """

    dropped: frozenset[str]
    cut: Mapping[str, tuple[Slot, tuple[int, ...]]]


def head_slots(model: MoEModel, heads: HeadPlan) -> HeadSlots:
    """A plan for heads, tensor by tensor."""
    if heads.choice is HeadChoice.KEEP:
        return HeadSlots(frozenset(), {})
    found = prediction_heads(model)
    if heads.choice is HeadChoice.DROP:
        return HeadSlots(frozenset(name for head in found for name in head.tensors), {})
    cuts = (cut for head in found for cut in _cuts(head, heads))
    return HeadSlots(frozenset(), {name: (slot, ids) for name, slot, ids in cuts})


def _cuts(head: Head, heads: HeadPlan) -> Iterator[tuple[str, Slot, tuple[int, ...]]]:
    for layer, ids in heads.kept.get(head.name, {}).items():
        for item in head.located[layer]:
            yield item.entry.name, item.slot, ids


def config_of_heads(content: bytes, model: MoEModel, heads: HeadPlan) -> bytes:
    """`config.json` that says that there are no heads, if they are dropped."""
    if heads.choice is not HeadChoice.DROP:
        return content
    config: dict[str, Any] = json.loads(content)
    inner: Any = config
    for key in model.family.config_path:
        inner = inner[key]
    zero = {key: 0 for key in HEAD_KEYS if inner.get(key)}
    top = {key: 0 for key in HEAD_KEYS if config.get(key)}
    return json_file(model.family.edited({**config, **top}, **zero))
