"""Measured losses of the criteria recommended for a purpose."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from analysis.ranking.advice import ADVICE, Purpose
from pruning.plan.plan import EXPERT_GRANULARITY
from pruning.planning.choice import corpora_words
from pruning.records.quality import PlanLoss, random_at

_KIND = (EXPERT_GRANULARITY, "uniform")
_SAME_SHARE = 5e-5


@dataclass(frozen=True, slots=True)
class MeasuredPlan:
    """A measured plan by a recommended criterion, with its loss increase in nats per token."""

    criterion: str
    corpora: str  # calibration corpora, display names
    loss: float
    random: float  # loss increase of Random, mean over draws
    best: float  # the smallest of any measured criterion, with equal counts, on these corpora


@dataclass(frozen=True, slots=True)
class QualityReading:
    """Measured whole-expert plans with equal counts, smallest loss first."""

    rows: tuple[MeasuredPlan, ...]
    over: str  # what the loss is averaged over

    @property
    def better(self) -> int:
        """Number of plans that beat Random."""
        return sum(row.loss < row.random for row in self.rows)

    @property
    def is_good(self) -> bool:
        """Whether all plans beat Random and one of them is the best that was measured."""
        rows = self.rows
        return self.better == len(rows) and any(row.loss <= row.best for row in rows)


def read_losses(purpose: Purpose, losses: Sequence[PlanLoss], share: float) -> QualityReading:
    """Compare the recommended criteria with Random at one sparsity, without repairs.

    Task-agnostic: mean over all corpora. Task-specific: over the calibration corpora, whose
    ability must be kept.
    """
    is_agnostic = purpose == "agnostic"
    over = "mean over all corpora" if is_agnostic else "on the corpus that ranked"
    rows: list[MeasuredPlan] = []
    if (chance := random_at(losses, share)) is None:
        return QualityReading((), over)
    rivals = [
        loss
        for loss in losses
        if loss.facts.is_plain
        and not (loss.way or loss.missing or loss.is_repaired)
        and (loss.facts.granularity, loss.facts.schedule) == _KIND
        and abs((loss.facts.removed or 0) - share) < _SAME_SHARE
    ]
    for plan_loss in rivals:
        facts = plan_loss.facts
        # Without their weights in a blend.
        bare = [name.rpartition(":")[0] or name for name in facts.corpora]
        calibration_corpora = [name for name in bare if name in plan_loss.change]
        corpora = tuple(plan_loss.change) if is_agnostic else calibration_corpora
        if facts.criterion not in ADVICE[purpose].criteria or not corpora:
            continue
        own, random, *others = (
            fmean(side[name] for name in corpora)
            for side in (plan_loss.change, chance.change, *(rival.change for rival in rivals))
        )
        measured = corpora_words(facts.corpora), own, random, min(others)
        rows.append(MeasuredPlan(facts.criterion, *measured))
    return QualityReading(tuple(sorted(rows, key=lambda row: row.loss)), over)
