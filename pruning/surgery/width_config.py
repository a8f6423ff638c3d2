"""Configuration and prediction heads of an export whose experts have other widths."""

import json

from analysis.errors import ExportError
from analysis.heads import prediction_heads
from analysis.model import MoEModel
from pruning.atoms.widths import WidthPlan, widths_config
from pruning.heads import HeadChoice, HeadPlan
from pruning.plan import PruningPlan
from pruning.surgery.config import json_file
from pruning.surgery.heads import plan_heads


def config_of_widths(content: bytes, model: MoEModel, widths: WidthPlan | None) -> bytes:
    """`config.json` that says what the widths are."""
    changes = widths_config(widths, model) if widths else {}
    if not changes:
        return content
    # The balancing loss is meant for training the full set of experts.
    edited = model.family.edited(json.loads(content), **changes, output_router_logits=False)
    return json_file(edited)


def heads_beside(
    model: MoEModel, plan: PruningPlan, choice: HeadChoice | None, widths: WidthPlan | None
) -> HeadPlan:
    """`plan_heads`, but heads with experts go where the one width of all experts changes."""
    width_key = model.family.width_key
    changes = widths_config(widths, model) if widths else {}
    heads = [head for head in prediction_heads(model) if head.has_experts]
    if width_key not in changes or not heads:
        return plan_heads(model, plan, choice)
    if choice not in (None, HeadChoice.DROP):
        raise ExportError(
            f"The head {heads[0].name} has experts as wide as {width_key} says, which becomes "
            f"{changes[width_key]}; use --mtp drop, or the width mode per-layer."
        )
    return HeadPlan(HeadChoice.DROP)
