"""Whether a plan loses more than Random at its sparsity: one verdict for all who say it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from analysis.model.moe_model import MoEModel
from pruning.plan.plan import PruningPlan
from pruning.records.evaluation import EvaluationRecord
from pruning.records.plan_facts import PlanFacts, plan_facts
from pruning.records.quality import (
    LossIncrease,
    PlanLoss,
    RandomLoss,
    is_random,
    loss_of,
    random_at,
)


@dataclass(frozen=True)
class AgainstRandom:
    """The loss increase of a plan next to Random's, in nats per token, over the same corpora."""

    mean: float  # of the plan
    chance: RandomLoss  # at the plan's sparsity, on these corpora alone
    is_repaired: bool  # Random is never repaired
    is_measured: bool = True  # else predicted

    @property
    def is_worse(self) -> bool:
        """Whether the plan loses more than Random on average."""
        return self.mean > self.chance.mean

    @property
    def is_within_spread(self) -> bool:
        """Whether both differ by no more than one standard deviation of Random's draws."""
        return abs(self.mean - self.chance.mean) <= (self.chance.mean_spread or 0.0)

    @property
    def comparison(self) -> str:
        """How much the plan loses next to Random: `less than`, and the like."""
        if self.is_within_spread:
            return "indistinguishable from"
        return "more than" if self.is_worse else "less than"

    @property
    def alarm(self) -> str:
        """A few words if the plan loses more than Random; else empty."""
        if not self.is_worse:
            return ""
        words = "no better than Random" if self.is_within_spread else "worse than Random"
        return words if self.is_measured else f"predicted {words}"

    @property
    def warning(self) -> str:
        """One line if the plan loses more than Random, with both losses; else empty."""
        if not self.is_worse:
            return ""
        chance = self.chance
        draws = f"mean of {chance.draws} draws" if chance.draws > 1 else "1 draw"
        spread = f", within one SD of {chance.mean_spread:.2f}" if self.is_within_spread else ""
        repair = " without repair" if self.is_repaired else ""
        return (
            f"{self.alarm[0].upper()}{self.alarm[1:]} at this sparsity: the plan adds "
            f"{self.mean:+z.2f} to the loss, Random{repair} {chance.mean:+z.2f} ({draws}{spread})."
        )


def against_random(
    loss: LossIncrease, facts: PlanFacts, losses: Sequence[PlanLoss]
) -> AgainstRandom | None:
    """The verdict on a loss, measured or predicted, of the plan with these facts.

    None for draws of Random, without a draw at this sparsity, and for a loss on other samples.
    `losses` are those of all plans of the model.
    """
    way = loss.way if isinstance(loss, PlanLoss) else ""
    if way or is_random(facts.criterion) or not facts.granularity:
        return None
    chance = random_at(losses, facts.removed or 0.0, facts.granularity, loss.change)
    if chance is None:
        return None
    mean = fmean(loss.change[corpus] for corpus in chance.change)
    return AgainstRandom(mean, chance, bool(facts.repair), isinstance(loss, PlanLoss))


def verdict_on(
    plan: PruningPlan,
    model: MoEModel,
    losses: Sequence[PlanLoss],
    predicted: LossIncrease | None = None,
) -> AgainstRandom | None:
    """`against_random` of a plan as it was measured, else as it is predicted."""
    if loss := loss_of(losses, plan.digest):
        return against_random(loss, loss.facts, losses)
    return against_random(predicted, plan_facts(plan, model), losses) if predicted else None


def random_warnings(
    records: Mapping[str, EvaluationRecord], losses: Sequence[PlanLoss]
) -> list[str]:
    """A line for each of these candidates that loses more than Random, by name.

    `losses` are those of all plans of the model, the candidates' on all corpora included.
    """
    plan_losses = {name: loss_of(losses, record.plan_digest) for name, record in records.items()}
    lines = {
        name: against.warning
        for name, loss in plan_losses.items()
        if loss and (against := against_random(loss, loss.facts, losses))
    }
    return [f"warning: {name}: {line}" for name, line in lines.items() if line]
