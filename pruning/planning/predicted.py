"""The loss that curves predict for a plan, with the error that measured plans of its order show."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from analysis.cache_keys import most_results
from analysis.errors import StatsError
from analysis.model.moe_model import MoEModel
from pruning.measures.curves import Sensitivity
from pruning.measures.sum_error import SumError
from pruning.plan.plan import PruningPlan, kept_by_layer
from pruning.plan.units import Removed
from pruning.planning.measured import Order, order_of
from pruning.planning.ranking import Ranking
from pruning.records.evaluation import EvaluationStore
from pruning.records.front import stored_front
from pruning.records.quality import LossIncrease, PlanLoss, stored_losses


@dataclass(frozen=True, eq=False)
class PredictedLoss(LossIncrease):
    """The loss increase that curves predict for a plan, without what was measured of itself."""

    samples: int  # the fewest of any corpus
    low: float  # low, high: 95% band of the mean, see `SumError`
    high: float
    ranges: Mapping[str, tuple[float, float]]  # corpus -> its band
    is_guess: bool  # see `SumError.is_guess`

    @property
    def words(self) -> str:
        """The prediction in one line, for people."""
        words = f"{self.mean:+z.2f} ({self.low:.2f} to {self.high:.2f})"
        if len(self.change) == 1:
            words += f" on {self.worst_on}"
        else:
            words += f" mean, {self.worst:+z.2f} worst ({self.worst_on})"
        return f"{'a guess:' if self.is_guess else 'predicted'} loss {words}"


def predict(error: SumError, removed: Removed) -> PredictedLoss:
    """What a plan of the curves' order costs that removes so many from each layer."""
    mean, by_corpus = error.bands(np.array([removed]))
    return PredictedLoss(
        {corpus: float(band.median[0]) for corpus, band in by_corpus.items()},
        samples=min(curve.samples for curve in error.curves.curves),
        low=float(mean.low[0]),
        high=float(mean.high[0]),
        ranges={
            name: (float(band.low[0]), float(band.high[0])) for name, band in by_corpus.items()
        },
        is_guess=error.is_guess(removed),
    )


def predicted_loss(
    order: Order, plan: PruningPlan, model: MoEModel, error: SumError
) -> PredictedLoss | None:
    """The loss that a plan adds, by curves of an order; None if the plan is not in this order."""
    removed = _removed_in(order, plan, model)
    return None if removed is None else predict(error, removed)


def predicted_in_bits(
    plan: PruningPlan, model: MoEModel, evaluations: EvaluationStore
) -> PredictedLoss | None:
    """The loss of a plan in fewer bits as a sum, see `pruning.records.front`; None if unknown.

    Its band is the largest error of such sums where both sides were measured.
    """
    try:
        front = stored_front(evaluations, model)
    except StatsError:  # nothing was evaluated
        return None
    measured = front.plans.get(plan.in_own_bits.digest)
    together = front.sum_of(plan.in_own_bits.digest, plan.bits)
    if measured is None or together is None:
        return None
    error, change = front.most_error, together.change
    return PredictedLoss(
        change,
        samples=measured.num_samples,
        low=together.mean - error,
        high=together.mean + error,
        ranges={name: (loss - error, loss + error) for name, loss in change.items()},
        is_guess=not front.compared,
    )


def _removed_in(order: Order, plan: PruningPlan, model: MoEModel) -> Removed | None:
    """What each layer loses under a plan of an order; None if the plan is not in it."""
    if plan.granularity != order.ref.granularity:
        return None
    return order.removed_by(plan.digest, kept_by_layer(plan, model))


@most_results(8)
def sum_error(ranking: Ranking, curves: Sensitivity, evaluations: EvaluationStore) -> SumError:
    """Curves of the loss increase, with every plan of their order that was measured whole.

    These are evaluations on held-out texts, and else the measurements of refinements.
    """
    losses: dict[Removed, dict[str, float]] = {}
    for curve in curves.curves:
        for removed, loss in curve.measured.items():
            if any(removed):
                losses.setdefault(removed, {})[curve.corpus] = loss
    for removed, measured in _evaluated(ranking, evaluations):
        change = {curve.corpus: measured.change.get(curve.corpus) for curve in curves.curves}
        own = {corpus: loss for corpus, loss in change.items() if loss is not None}
        losses[removed] = {**losses.get(removed, {}), **own}
    return SumError(curves, {removed: by for removed, by in losses.items() if by})


def _evaluated(
    ranking: Ranking, evaluations: EvaluationStore
) -> Iterator[tuple[Removed, PlanLoss]]:
    """The evaluated plans of an order, without a repair, with weights as they are."""
    order, model = order_of(ranking, ranking.spec), ranking.model
    own = (ranking.criterion.name, order.ref.granularity, set(ranking.choice.corpora))
    for loss in stored_losses(evaluations, model.identity):
        facts = loss.facts
        is_as_it_is = facts.is_plain and not (loss.way or loss.is_repaired)
        if is_as_it_is and own == (facts.criterion, facts.granularity, set(facts.corpora)):
            removed = order.removed_by(loss.plan, loss.kept)
            if removed is not None and any(removed):
                yield removed, loss
