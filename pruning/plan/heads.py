"""Prediction heads (MTP) of an export: an explicit choice with a safe default.

One key of config.json counts the experts of head and trunk. A whole head beside a pruned trunk
makes engines fail or read past the end, so a head with experts is dropped by default. If it is
pruned, its experts are ranked by what a calibration with the group `heads` measured, else by their
weights.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import chain
from typing import TYPE_CHECKING, Any, Protocol

from analysis.model.heads import Head, prediction_heads
from pruning.plan.sizes import BYTES, ModelPart, plan_parts, tensors_of

if TYPE_CHECKING:
    from analysis.model.moe_model import MoEModel
    from pruning.plan.plan import PruningPlan

# Without statistics of heads: the better of the paper's two calibration-free criteria.
WEIGHT_CRITERION = "aimer"


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
    criterion: str = WEIGHT_CRITERION  # that ranked them
    runs: tuple[str, ...] = ()  # ids of the calibrations that it read; none for weights

    def to_json(self) -> dict[str, Any]:
        """Plain JSON."""
        kept = {
            head: {str(layer): list(ids) for layer, ids in layers.items()}
            for head, layers in self.kept.items()
        }
        ranked = {"criterion": self.criterion, "runs": list(self.runs)} if kept else {}
        return {"choice": str(self.choice), "kept": kept, **ranked}

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> HeadPlan:
        """Inverse of `to_json`."""
        kept = {
            str(head): {int(layer): tuple(map(int, ids)) for layer, ids in layers.items()}
            for head, layers in raw["kept"].items()
        }
        criterion = str(raw.get("criterion", WEIGHT_CRITERION))
        return cls(HeadChoice(raw["choice"]), kept, criterion, tuple(raw.get("runs", ())))


class HeadRanking(Protocol):
    """What ranks the experts of heads; `pruning.surgery.head_ranking` makes one."""

    @property
    def criterion(self) -> str:
        """Name of the criterion."""

    @property
    def runs(self) -> tuple[str, ...]:
        """Ids of the calibrations that it reads; none for weights."""

    @property
    def words(self) -> str:
        """Criterion and runs, for people."""

    def refusal(self, head: Head, model: MoEModel) -> str:
        """Why it cannot rank a head, given as the model of its layers; empty if it can."""

    def kept(self, model: MoEModel, count: int) -> Mapping[str, Mapping[int, tuple[int, ...]]]:
        """The first `count` experts of each layer, as in `HeadPlan.kept`."""


def heads_depend_on(model: MoEModel, plan: PruningPlan) -> bool:
    """Whether heads hold experts that config.json will no longer count right.

    The plan is complete, see `fit_plan`.
    """
    count = max(map(len, plan.kept.values()))
    changes = any(count != layer.num_experts for layer in model.layers)
    return changes and any(head.has_experts for head in prediction_heads(model))


def heads_in_words(model: MoEModel, heads: HeadPlan, ranked_by: str = "") -> str:
    """What an export does with the heads, for people; empty if there are none.

    `ranked_by` is `HeadRanking.words` of heads that are pruned.
    """
    if not prediction_heads(model):
        return ""
    return {
        HeadChoice.KEEP: "kept as they are",
        HeadChoice.DROP: "left out",
        HeadChoice.PRUNE: f"their experts pruned by {ranked_by}",
    }[heads.choice]


def heads_bytes(model: MoEModel, plan: PruningPlan, choice: HeadChoice | None) -> int:
    """Bytes that prediction heads take in an export beyond what `size_report` counts for them.

    The plan is complete, see `fit_plan`; `choice` is possible, or None for the default.
    """
    heads = prediction_heads(model)
    if choice is None or not heads:
        return 0
    full = int(tensors_of(model).heads[BYTES])
    default = int(plan_parts(model, plan)[ModelPart.HEADS][BYTES])
    if choice is not HeadChoice.PRUNE:
        return (full if choice is HeadChoice.KEEP else 0) - default
    removed = model.layers[-1].num_experts - max(map(len, plan.kept.values()))
    located = (item for head in heads for item in chain(*head.located.values()))
    nbytes = sum(item.entry.nbytes for item in located) // model.layers[-1].num_experts
    return full - removed * nbytes - default
