"""What a measured plan costs, in words and rows: for its report and for the card of its export."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pruning.plan.plan import PruningPlan
from pruning.records.quality import PlanLoss, RandomLoss, full_losses, loss_of, random_at
from pruning.records.right_of_plans import RightRow, right_rows
from pruning.records.verdict import AgainstRandom

_MOST_CORPORA = 8  # rows of a table that is read at a glance


@dataclass(frozen=True, slots=True)
class LossRow:
    """A row of the loss table, in nats per token; None if not measured."""

    name: str  # corpus, or an aggregate over all
    full: float | None  # loss of the original model
    plan: float | None  # loss increase of the plan
    random: float | None  # loss increase of Random, mean over draws


@dataclass(frozen=True, eq=False)
class PlanCost:
    """What a plan costs beside Random at its sparsity, and beside itself without its repair."""

    loss: PlanLoss | None  # None if it was not measured
    chance: RandomLoss | None
    unrepaired: PlanLoss | None  # of a repaired plan, measured in the same way
    full: Mapping[str, float]  # corpus -> loss of the original model
    right: tuple[RightRow, ...] = ()  # by corpus; empty if no answers were checked

    @property
    def verdict(self) -> str:
        """One to three sentences."""
        return " ".join(filter(None, (self._verdict, self._repair_words)))

    @property
    def _verdict(self) -> str:
        loss, chance = self.loss, self.chance
        if loss is None:
            return "Its loss has not been measured: measure it before you decide."
        text = (
            f"It adds {loss.mean:+z.2f} nats per token on average over {len(loss.change)} corpora, "
            f"most on {loss.worst_on} ({loss.worst:+z.2f})."
        )
        if loss.way:
            return f"{text} It was measured in another way than most plans: {loss.way}."
        if loss.missing:
            return f"{text} It was not measured on {', '.join(loss.missing)}."
        if chance is None:
            return f"{text} Random pruning at this sparsity was not measured."
        repair = " without repair" if loss.is_repaired else ""
        words = AgainstRandom(loss.mean, chance, loss.is_repaired).comparison
        draws = f"{chance.draws} draws" if chance.draws > 1 else "1 draw"
        text += (
            f" That is {words} Random pruning{repair} at this sparsity "
            f"({chance.mean:+z.2f}, {draws})"
        )
        worse = sorted(name for name, change in loss.change.items() if change > chance.change[name])
        return f"{text}; on {', '.join(worse)} it loses more than Random." if worse else f"{text}."

    @property
    def _repair_words(self) -> str:
        """How much of the loss increase the repair gave back, and where it does harm."""
        loss, before = self.loss, self.unrepaired
        if loss is None or before is None or before.mean <= 0:
            return ""
        share = 1 - loss.mean / before.mean
        text = f"The repair gave back {share:.0%} of {before.mean:+z.2f}"
        if share < 0:
            text = f"The repair made it worse: it was {before.mean:+z.2f} without"
        worse = sorted(name for name, change in loss.change.items() if change > before.change[name])
        return f"{text}; on {', '.join(worse)} it does harm." if worse else f"{text}."

    @property
    def rows(self) -> tuple[LossRow, ...]:
        """The worst corpus first, then mean and worst; empty if it was not measured."""
        loss, chance = self.loss, self.chance
        if loss is None:
            return ()
        random_change = chance.change if chance else {}
        corpora = sorted(loss.change, key=loss.change.__getitem__, reverse=True)
        rows = [
            LossRow(
                name,
                loss.full.get(name, self.full.get(name)),
                loss.change[name],
                random_change.get(name),
            )
            for name in corpora[:_MOST_CORPORA]
        ]
        if len(corpora) > 1:
            rows.append(LossRow("mean", None, loss.mean, chance.mean if chance else None))
            # Of the rows above; the mean of each draw's own worst would exceed them all.
            worst = max(random_change.values(), default=None)
            rows.append(LossRow("worst", None, loss.worst, worst))
        return tuple(rows)


def cost_of(plan: PruningPlan, losses: Sequence[PlanLoss]) -> PlanCost:
    """The cost of a complete plan; `losses` are those of all plans of its model."""
    loss, chance, unrepaired = loss_of(losses, plan.digest), None, None
    if loss and not loss.way and loss.facts.removed:
        chance = random_at(losses, loss.facts.removed, loss.facts.granularity)
    if loss and plan.repair:
        before = loss_of(losses, plan.unrepaired.digest)
        if before and (before.way, before.change.keys()) == (loss.way, loss.change.keys()):
            unrepaired = before
    right = right_rows(loss, losses) if loss and loss.right else ()
    return PlanCost(loss, chance, unrepaired, full_losses(losses), right)
