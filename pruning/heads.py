"""Prediction heads (MTP) of an export: an explicit choice with a safe default.

One key of config.json counts the experts of head and trunk. A whole head beside a pruned trunk
makes engines fail or read past the end, so a head with experts is dropped by default. transformers
does not run heads, so no calibration sees their experts: they can only be pruned by weights.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from analysis.heads import prediction_heads
from analysis.model import MoEModel
from pruning.plan import PruningPlan

CRITERION = "aimer"  # the better of the paper's two calibration-free criteria


class HeadChoice(StrEnum):
    """What an export does with prediction heads."""

    KEEP = "keep"
    DROP = "drop"
    PRUNE = "prune"


@dataclass(frozen=True)
class HeadPlan:
    """What an export does with the heads of a checkpoint."""

    choice: HeadChoice = HeadChoice.KEEP
    # If pruned: name of a head -> layer index in its names -> kept experts, ascending.
    kept: Mapping[str, Mapping[int, tuple[int, ...]]] = field(default_factory=dict, hash=False)

    def to_json(self) -> dict[str, Any]:
        """Plain JSON."""
        kept = {
            head: {str(layer): list(ids) for layer, ids in layers.items()}
            for head, layers in self.kept.items()
        }
        return {"choice": str(self.choice), "kept": kept}

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> "HeadPlan":
        """Inverse of `to_json`."""
        kept = {
            str(head): {int(layer): tuple(map(int, ids)) for layer, ids in layers.items()}
            for head, layers in raw["kept"].items()
        }
        return cls(HeadChoice(raw["choice"]), kept)


def heads_depend_on(model: MoEModel, plan: PruningPlan) -> bool:
    """Whether heads hold experts that config.json will no longer count right.

    The plan is complete, see `fit_plan`.
    """
    count = max(map(len, plan.kept.values()))
    changes = any(count != layer.num_experts for layer in model.layers)
    return changes and any(head.has_experts for head in prediction_heads(model))


def heads_in_words(model: MoEModel, heads: HeadPlan) -> str:
    """What an export does with the heads, for people; empty if there are none."""
    if not prediction_heads(model):
        return ""
    return {
        HeadChoice.KEEP: "kept as they are",
        HeadChoice.DROP: "left out",
        HeadChoice.PRUNE: f"their experts pruned by {CRITERION} of their own weights",
    }[heads.choice]
