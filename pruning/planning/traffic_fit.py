"""Whether a plan still fits traffic: what its experts hold of it, beside its calibrations."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from analysis.errors import PlanError
from analysis.families.base import MoELayer
from analysis.numbers.arrays import BoolArray, FloatArray
from analysis.ranking.choose import run_by_corpus
from analysis.ranking.coverage import coverage
from analysis.ranking.experts import keeping_order, rank_of
from analysis.ranking.overlap import set_overlap
from analysis.stats.grid import Grid
from analysis.stats.manifest import COUNTS_ALONE, Run
from analysis.stats.reading import load_expert_stats
from analysis.stats.store import StatsStore
from analysis.stats.tables import ExpertStats
from analysis.traffic.importing import CountedTraffic, traffic_words
from pruning.plan.plan import EXPERT_GRANULARITY, PruningPlan


@dataclass(frozen=True, eq=False)
class Held:
    """What a plan's experts hold of a corpus, or of traffic, and how near the two are."""

    run: Run | None  # None: the traffic
    layers: FloatArray  # share of each layer's routed choices, 0..1
    whole: float
    # Of what frequency would remove at the plan's counts, with the traffic; None: it removes none.
    overlap: float | None = 1.0


@dataclass(frozen=True, eq=False)
class TrafficFit:
    """A plan beside traffic."""

    plan: PruningPlan
    sparse: tuple[MoELayer, ...]
    words: str  # what the traffic is
    num_requests: int
    num_tokens: int  # counted
    today: Held
    best: FloatArray  # by layer: what the most chosen experts would hold, as many as the plan keeps
    chance: float | None  # overlap of random sets; None: the plan removes none
    corpora: Mapping[str, Held]  # nearest first, else by name

    @property
    def ranked(self) -> dict[str, Held]:
        """The corpora that ranked the plan."""
        runs = self.plan.provenance.runs
        return {
            name: held
            for name, held in self.corpora.items()
            if held.run and held.run.manifest.run_id in runs
        }

    @property
    def most(self) -> float:
        """What as many experts could hold of the traffic: mean over layers, 0..1."""
        return float(self.best.mean())

    def finding(self, traffic: str) -> str:
        """What it comes to, as part of a sentence; `traffic` names the routed choices."""
        words = f"the plan's experts hold {self.today.whole:.1%} of {traffic}"
        if self.ranked:
            ranked = (f"{held.whole:.1%} of {name}" for name, held in self.ranked.items())
            words += f", {', '.join(ranked)} that ranked it"
        words += f"; as many experts could hold {self.most:.1%}"
        nearest = next(iter(self.corpora), "")
        if nearest and self.chance is not None:
            near = self.corpora[nearest].overlap
            words += f"; nearest is {nearest} (overlap {near:.2f}, chance {self.chance:.2f})"
        return words


def kept_by(plan: PruningPlan, grid: Grid) -> BoolArray:
    """(layers, experts): what the plan keeps; a layer that it does not name is whole.

    A PlanError if the plan is of neurons, or keeps what the layers do not have.
    """
    if plan.granularity != EXPERT_GRANULARITY:
        raise PlanError(
            "The plan removes neurons, and servers return experts; give a plan of experts."
        )
    kept = grid.present.copy()
    for row, layer in enumerate(grid.layers):
        if ids := plan.kept.get(layer.index):
            if ids[-1] >= layer.num_experts:
                raise PlanError(
                    f"The plan keeps expert {ids[-1]} in layer {layer.index}, which has "
                    f"{layer.num_experts} in {plan.model.name}."
                )
            kept[row] = np.isin(np.arange(kept.shape[1]), ids)
    return kept


def fit_of(
    plan: PruningPlan,
    layers: tuple[MoELayer, ...],
    traffic: CountedTraffic,
    store: StatsStore,
    stats_of: Callable[[Run], ExpertStats] = load_expert_stats,
) -> TrafficFit:
    """What a plan keeps of traffic and of every calibration of its model in the store.

    Errors as by `kept_by`.
    """
    grid = Grid(layers)
    kept = kept_by(plan, grid)
    counts = np.where(grid.present, traffic.counts, np.nan)
    removed = _removed(counts, kept, grid)
    corpora = {}
    for name, run in _runs(plan, store).items():
        of_corpus = grid.fold(stats_of(run).table["num_tokens"])
        overlap = set_overlap(removed, _removed(of_corpus, kept, grid)) if removed.any() else None
        corpora[name] = Held(run, *_shares(of_corpus, kept), overlap)
    nearest = sorted(corpora, key=lambda name: (-(corpora[name].overlap or 0), name))
    sizes = removed.sum(axis=1) / grid.counts
    return TrafficFit(
        plan,
        layers,
        traffic_words(traffic.corpus),
        traffic.corpus.num_documents,
        traffic.corpus.num_counted,
        Held(None, *_shares(counts, kept)),
        _shares(counts, ~removed & grid.present)[0],
        float(sizes[sizes > 0].mean()) if removed.any() else None,
        {name: corpora[name] for name in nearest},
    )


def fit_of_run(
    plan: PruningPlan,
    run: Run,
    store: StatsStore,
    stats_of: Callable[[Run], ExpertStats] = load_expert_stats,
) -> TrafficFit:
    """The same of traffic that was imported."""
    layers = run.manifest.model.layers
    counts = np.nan_to_num(Grid(layers).fold(stats_of(run).table["num_tokens"])).astype(np.int64)
    return fit_of(plan, layers, CountedTraffic(counts, run.manifest.corpora[0]), store, stats_of)


def imported_traffic(store: StatsStore, identity: str) -> dict[str, Run]:
    """The traffic of a model that was imported, by name."""
    return run_by_corpus(store.of_model(identity, COUNTS_ALONE))


def _runs(plan: PruningPlan, store: StatsStore) -> dict[str, Run]:
    """The calibration of each corpus of the plan's model; the one that ranked it, if one did."""
    calibrations = store.of_model(plan.model.identity, "routed")
    behind = [
        run
        for run in store.of_model(plan.model.identity, "routed", COUNTS_ALONE)
        if run.manifest.run_id in plan.provenance.runs
    ]
    return {**run_by_corpus(calibrations), **{run.manifest.corpus: run for run in behind}}


def _removed(counts: FloatArray, kept: BoolArray, grid: Grid) -> BoolArray:
    """(layers, experts): what frequency removes, as many experts as the plan in each layer."""
    ranks = rank_of(keeping_order(counts, grid))
    removed: BoolArray = (ranks >= kept.sum(axis=1)[:, None]) & grid.present
    return removed


def _shares(counts: FloatArray, kept: BoolArray) -> tuple[FloatArray, float]:
    """The share of routed choices that these experts hold, by layer and of all layers."""
    rows = [coverage(counts[row : row + 1], kept[row : row + 1]) for row in range(len(counts))]
    return np.array(rows), coverage(counts, kept)
