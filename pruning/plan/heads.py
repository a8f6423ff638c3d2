"""Prediction heads (MTP) of an export: an explicit choice with a safe default.

One key of config.json counts the experts of head and trunk. A whole head beside a pruned trunk
makes engines fail or read past the end, so a head with experts is dropped by default. If it is
pruned, its experts are ranked by what a calibration with the group `heads` measured, else by their
weights.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from analysis.criteria import CRITERIA, Criterion, get_criterion
from analysis.errors import CriterionError
from analysis.model.head_parts import head_experts
from analysis.model.heads import prediction_heads
from analysis.model.moe_model import MoEModel
from analysis.ranking.experts import has_columns
from analysis.stats.blend import blended_heads
from analysis.stats.store import HEADS, StatsStore
from analysis.stats.tables import ExpertStats, Gate
from pruning.plan.active import ranked_by
from pruning.plan.plan import PruningPlan

# Without statistics of heads: the better of the paper's two calibration-free criteria.
WEIGHT_CRITERION = "aimer"
# With them, if they lack what the plan's own criterion reads.
_ROUTED_CRITERION = "reap"


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
    def from_json(cls, raw: Mapping[str, Any]) -> "HeadPlan":
        """Inverse of `to_json`."""
        kept = {
            str(head): {int(layer): tuple(map(int, ids)) for layer, ids in layers.items()}
            for head, layers in raw["kept"].items()
        }
        criterion = str(raw.get("criterion", WEIGHT_CRITERION))
        return cls(HeadChoice(raw["choice"]), kept, criterion, tuple(raw.get("runs", ())))


@dataclass(frozen=True, eq=False)
class HeadRanking:
    """What ranks the experts of heads, measured by the calibrations behind a plan."""

    criterion: Criterion
    gate: Gate
    stats: ExpertStats  # layers as in `head_experts`
    runs: tuple[str, ...]  # ids


def head_ranking(model: MoEModel, plan: PruningPlan, store: StatsStore) -> HeadRanking | None:
    """The ranking of heads by the plan's own runs; None unless the store has all, with heads.

    By the plan's criterion, or by REAP if that reads more than the routed tokens of a head.
    """
    parts = ranked_by(plan, store)
    measured = [part for part in parts if HEADS in part.run.manifest.files]
    if not measured or len(measured) < len(plan.provenance.runs):
        return None
    stats = blended_heads(measured, tuple(layer for _, _, layer in head_experts(model)))
    try:
        criterion = get_criterion(plan.provenance.criterion)
    except CriterionError:
        criterion = CRITERIA[_ROUTED_CRITERION]
    is_measured = criterion.source == "routed" and criterion.score and has_columns(criterion, stats)
    if not is_measured or criterion.is_constant:
        criterion = CRITERIA[_ROUTED_CRITERION]
    gate: Gate = "renormalized" if plan.provenance.gate == "renormalized" else "applied"
    return HeadRanking(criterion, gate, stats, tuple(part.run.manifest.run_id for part in measured))


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
        HeadChoice.PRUNE: f"their experts pruned by {ranked_in_words(heads.criterion, heads.runs)}",
    }[heads.choice]


def ranked_in_words(criterion: str, runs: Sequence[str]) -> str:
    """By what the experts of heads are ranked: a criterion's name, and the runs that it reads."""
    label = get_criterion(criterion).label
    return f"{label}, measured in {' and '.join(runs)}" if runs else f"{label} of their weights"
