"""The loss that curves predict for a plan, with the error that measured plans of its order show."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

import numpy as np

from analysis.cache_keys import most_results
from analysis.errors import PlanError, StatsError, UserError
from analysis.model.moe_model import MoEModel
from pruning.measures.curves import Sensitivity
from pruning.measures.sum_error import SumError
from pruning.plan.allocation import Removed
from pruning.plan.plan import PruningPlan
from pruning.planning.make import make_plan
from pruning.planning.measured import Order, find_sensitivity, order_of, removed_by
from pruning.planning.neurons import Arena, arena_of
from pruning.planning.ranking import Ranking
from pruning.records.evaluation import EvaluationStore
from pruning.records.front import stored_front
from pruning.records.quality import LossIncrease, PlanLoss, stored_losses
from pruning.records.sensitivity import SensitivityStore
from pruning.search.store import KnownSearch


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
        samples=min(each.samples for each in error.curves.curves),
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
        ranges={name: (each - error, each + error) for name, each in change.items()},
        is_guess=not front.compared,
    )


def _removed_in(order: Order, plan: PruningPlan, model: MoEModel) -> Removed | None:
    """What each layer loses under a plan of an order; None if the plan is not in it."""
    if plan.granularity != order.ref.granularity:
        return None
    removed = removed_by(plan, order.sizes, model)
    try:
        return removed if order.plan_of(removed).digest == plan.digest else None
    except PlanError:  # no plan in this order loses this many
        return None


@most_results(8)
def sum_error(
    ranking: Ranking,
    curves: Sensitivity,
    evaluations: EvaluationStore,
    known: SensitivityStore,
    searches: Sequence[KnownSearch],
) -> SumError:
    """Curves of the loss increase, with every plan of their order that was measured whole.

    These are evaluations on held-out texts, of plans that what was asked of them makes again or
    that a search keeps, and else the measurements of refinements.
    """
    losses: dict[Removed, dict[str, float]] = {}
    for each in curves.curves:
        for removed, loss in each.measured.items():
            if any(removed):
                losses.setdefault(removed, {})[each.corpus] = loss
    for removed, measured in _evaluated(ranking, evaluations, known, searches):
        change = {each.corpus: measured.change.get(each.corpus) for each in curves.curves}
        own = {corpus: loss for corpus, loss in change.items() if loss is not None}
        losses[removed] = {**losses.get(removed, {}), **own}
    return SumError(curves, {removed: by for removed, by in losses.items() if by})


def _evaluated(
    ranking: Ranking,
    evaluations: EvaluationStore,
    known: SensitivityStore,
    searches: Sequence[KnownSearch],
) -> Iterator[tuple[Removed, PlanLoss]]:
    """The evaluated plans of an order, without a repair, with weights as they are."""
    order, model = order_of(ranking, ranking.spec), ranking.model
    searched = {} if ranking.by_neuron else _searched(order, model, searches)
    own = (ranking.criterion.name, order.ref.granularity, set(ranking.choice.corpora))
    again = _Again(ranking, known)
    for loss in stored_losses(evaluations, model.identity):
        facts = loss.facts
        is_as_it_is = facts.is_plain and not (loss.way or loss.is_repaired)
        if not is_as_it_is or own != (facts.criterion, facts.granularity, set(facts.corpora)):
            continue
        removed = searched.get(loss.plan)
        if removed is None and (plan := again.plan(loss)):
            removed = _removed_in(order, plan, model)
        if removed is not None and any(removed):
            yield removed, loss


def _searched(order: Order, model: MoEModel, searches: Sequence[KnownSearch]) -> dict[str, Removed]:
    """Digest of a plan -> what each layer loses, of the counts of searches."""
    plans: dict[str, Removed] = {}
    for each in searches:
        removed = tuple(layer.num_experts - each.kept[layer.index] for layer in model.layers)
        with suppress(PlanError):  # this order has no plan of these counts
            plans[order.plan_of(removed).digest] = removed
    return plans


@dataclass(frozen=True, eq=False)
class _Again:
    """Makes plans again from what was asked of them, and keeps what takes long."""

    ranking: Ranking
    known: SensitivityStore
    arenas: dict[str, Arena] = field(default_factory=dict)
    sensitivities: dict[str, Sensitivity | None] = field(default_factory=dict)

    def plan(self, loss: PlanLoss) -> PruningPlan | None:
        """The plan of a loss; None if what was asked gives another plan by now."""
        spec = loss.facts.asked
        if spec is None or spec.spread.schedule_file or spec.spread.full_file:
            return None
        spread = spec.spread.model_dump_json()
        key = spread + spec.limits.model_dump_json()
        try:
            ranking = self.ranking
            if spec.spread.is_measured:
                if spread not in self.sensitivities:
                    self.sensitivities[spread] = find_sensitivity(ranking, spec, self.known)
                ranking = replace(ranking, sensitivity=self.sensitivities[spread])
            if spec.by_neuron and key not in self.arenas:
                self.arenas[key] = arena_of(ranking, spec)
            plan = make_plan(ranking, spec, self.arenas.get(key))
        except UserError:  # such as statistics that are gone
            return None
        return plan if plan.digest == loss.plan else None
