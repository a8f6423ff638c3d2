"""The sensitivity of a plan's order: what the measured schedule reads, and what it predicts."""

from dataclasses import dataclass, replace
from typing import TypeVar

from analysis.corpora import parse_corpus
from analysis.errors import PlanError
from analysis.stats.store import StatsStore
from pruning.evaluate.quality import AddedLoss
from pruning.plan import PruningPlan
from pruning.planning.orders import order_of, removed_by
from pruning.planning.ranking import Ranking
from pruning.requests.plan import PlanRequest
from pruning.sensitivity.curves import Curves, Sensitivity, curves_of, with_samples
from pruning.sensitivity.record import SensitivityRecord, SensitivityStore

Ranked = TypeVar("Ranked", bound=Ranking)


def with_sensitivity(ranking: Ranked, request: PlanRequest, store: StatsStore) -> Ranked:
    """The ranking with what was measured of its order, where the request's schedule reads it."""
    if not request.is_measured:
        return ranking
    known = SensitivityStore(store.directories)
    return replace(ranking, sensitivity=find_sensitivity(ranking, request, known))


def sensitivity_on(
    corpus: str, ranking: Ranking, request: PlanRequest, store: StatsStore
) -> Sensitivity | None:
    """What was measured of an order on this corpus, else on all that were."""
    known = SensitivityStore(store.directories)
    there = request.model_copy(update={"measured_on": (corpus,)})
    return find_sensitivity(ranking, there, known) or find_sensitivity(ranking, request, known)


def find_sensitivity(
    ranking: Ranking, request: PlanRequest, known: SensitivityStore
) -> Sensitivity | None:
    """What was measured of an order: on each corpus that is asked for, else on all that were."""
    every = order_sensitivity(ranking, request, known)
    found = {each.corpus: each for each in every.curves} if every else {}
    named = tuple(parse_corpus(corpus).name for corpus in request.measured_on)
    wanted = named or tuple(sorted(found))
    if not wanted or any(corpus not in found for corpus in wanted):
        return None
    chosen = tuple(found[corpus] for corpus in dict.fromkeys(wanted))
    return Sensitivity(chosen, request.cost, request.across)


def order_sensitivity(
    ranking: Ranking, request: PlanRequest, known: SensitivityStore
) -> Sensitivity | None:
    """What was measured of an order on every corpus, the last one first; None without any."""
    digest = order_of(ranking, request).ref.digest
    found: dict[str, Curves] = {}
    for record in known.of_order(ranking.model.identity, digest):
        corpus = str(record.corpus["name"])
        if corpus not in found and (curves := _curves(known, record, request)):
            found[corpus] = curves
    return Sensitivity(tuple(found.values()), request.cost) if found else None


def _curves(
    known: SensitivityStore, record: SensitivityRecord, request: PlanRequest
) -> Curves | None:
    points = known.points(record)
    curves = curves_of(points, len(record.layers), request.cost)
    if curves is None:
        return None
    if request.cost == "nll":
        curves = with_samples(curves, points)
    return replace(curves, name=record.record_id, corpus=str(record.corpus["name"]))


@dataclass(frozen=True, eq=False)
class PredictedLoss(AddedLoss):
    """What curves predict of a plan."""

    samples: int  # of the corpus with the fewest

    @property
    def words(self) -> str:
        """The prediction in one line, for people."""
        return f"predicted {super().words}, from {self.samples} samples"


def predicted_loss(
    ranking: Ranking, request: PlanRequest, plan: PruningPlan, found: Sensitivity
) -> PredictedLoss | None:
    """What a plan would add to the loss, by curves of the added loss of an order.

    None where the plan takes others than the last of each layer in this order.
    """
    order = order_of(ranking, request)
    removed = removed_by(plan, order.sizes, ranking.model)
    try:
        is_in_order = order.plan_of(removed).digest == plan.digest
    except PlanError:  # no plan in this order loses so many
        is_in_order = False
    if not is_in_order:
        return None
    change = {each.corpus: each.predicted(removed) for each in found.curves}
    return PredictedLoss(change, min(each.samples for each in found.curves))
