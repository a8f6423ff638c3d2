"""The sensitivity that a plan's measured schedule reads: of its order, on the corpora asked for."""

from dataclasses import replace
from typing import TypeVar

from analysis.corpora import parse_corpus
from analysis.stats.store import StatsStore
from pruning.planning.orders import order_of
from pruning.planning.ranking import Ranking
from pruning.requests.plan import PlanRequest
from pruning.sensitivity.curves import Curves, Sensitivity, curves_of
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
    """What was measured of an order on this corpus, else on the last one that was."""
    known = SensitivityStore(store.directories)
    there = request.model_copy(update={"measured_on": (corpus,)})
    return find_sensitivity(ranking, there, known) or find_sensitivity(ranking, request, known)


def find_sensitivity(
    ranking: Ranking, request: PlanRequest, known: SensitivityStore
) -> Sensitivity | None:
    """What was measured of an order: on each corpus that is asked for, else on the last one."""
    digest = order_of(ranking, request).ref.digest
    found: dict[str, Curves] = {}
    for record in known.of_order(ranking.model.identity, digest):
        corpus = str(record.corpus["name"])
        if corpus not in found and (curves := _curves(known, record, request)):
            found[corpus] = curves
    named = tuple(parse_corpus(corpus).name for corpus in request.measured_on)
    wanted = named or tuple(found)[:1]
    if not wanted or any(corpus not in found for corpus in wanted):
        return None
    chosen = tuple(found[corpus] for corpus in dict.fromkeys(wanted))
    return Sensitivity(chosen, request.cost, request.across)


def _curves(
    known: SensitivityStore, record: SensitivityRecord, request: PlanRequest
) -> Curves | None:
    curves = curves_of(known.points(record), len(record.layers), request.cost)
    if curves is None:
        return None
    return replace(curves, name=record.record_id, corpus=str(record.corpus["name"]))
