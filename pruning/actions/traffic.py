"""Traffic: whether a plan still fits what users ask, by the experts that a server chose for it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Final

import numpy as np

from analysis.errors import PlanError
from analysis.families.base import MoELayer
from analysis.model.opening import load_model_index
from analysis.numbers.arrays import BoolArray, FloatArray
from analysis.ranking.choose import run_by_corpus
from analysis.ranking.coverage import coverage
from analysis.ranking.experts import keeping_order, rank_of
from analysis.ranking.overlap import set_overlap
from analysis.stats.grid import Grid
from analysis.stats.manifest import COUNTS_ALONE, Run
from analysis.stats.reading import load_expert_stats
from analysis.stats.store import StatsStore, stats_store
from analysis.traffic.importing import TrafficImport, count_traffic, traffic_words, usual_name
from analysis.traffic.layout import Layout
from pruning.actions.action import Action, Call, Note, Outcome, Table
from pruning.plan.plan import EXPERT_GRANULARITY, PruningPlan, fit_plan, plan_from_dict
from pruning.requests.model import ActionRequest
from pruning.spec import options
from pruning.spec.base import Option, command_line, option_words
from pruning.tasks import Steps


class TrafficRequest(ActionRequest):
    """A plan, and answers of a server that runs the model it was made for."""

    asked_by = "traffic"
    plan: Annotated[options.Plan, Option(place="PLAN")]
    traces: options.Traces
    model: Annotated[
        options.Text | None,
        Option(
            "The plan's model; default: as the statistics that are here describe it.",
            takes="MODEL",
        ),
    ] = None
    revision: options.Revision | None = None
    count: options.Count = "all"
    skip_bad_rows: options.SkipBadRows = 0
    stats_dir: options.StatsDir | None = None

    def command(self, plans: tuple[str, ...] = ("plan.json",), out: str = "") -> str:
        """The equivalent command line; `plans` names the file that holds the plan."""
        del out  # nothing is written
        traces = map(str, self.traces)
        return command_line("traffic", plans[0], *traces, *option_words(self))


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


def _run(request: TrafficRequest) -> Steps[TrafficFit]:
    """Count the traffic, and compare what the plan keeps of it and of every calibration."""
    plan, store = plan_from_dict(request.plan), stats_store(request.stats_dir)
    if plan.granularity != EXPERT_GRANULARITY:
        raise PlanError(
            "The plan removes neurons, and servers return experts; give a plan of experts."
        )
    layout = _layout(request, plan, store)
    grid = Grid(layout.layers)
    kept = _kept(plan, grid)
    paths = tuple(dict.fromkeys(request.traces))
    asked = TrafficImport(paths, usual_name(paths), request.count, request.skip_bad_rows)
    if_pruned = f"Serve {layout.name} itself, and give its answers."
    counted = yield from count_traffic(layout, asked, if_pruned)
    counts = np.where(grid.present, counted.counts, np.nan)
    removed = _removed(counts, kept, grid)
    corpora = {}
    for name, run in _runs(plan, store).items():
        of_corpus = grid.fold(load_expert_stats(run).table["num_tokens"])
        overlap = set_overlap(removed, _removed(of_corpus, kept, grid)) if removed.any() else None
        corpora[name] = Held(run, *_shares(of_corpus, kept), overlap)
    nearest = sorted(corpora, key=lambda name: (-(corpora[name].overlap or 0), name))
    sizes = removed.sum(axis=1) / grid.counts
    return TrafficFit(
        plan,
        layout.layers,
        traffic_words(counted.corpus),
        counted.corpus.num_documents,
        counted.corpus.num_counted,
        Held(None, *_shares(counts, kept)),
        _shares(counts, ~removed & grid.present)[0],
        float(sizes[sizes > 0].mean()) if removed.any() else None,
        {name: corpora[name] for name in nearest},
    )


def _layout(request: TrafficRequest, plan: PruningPlan, store: StatsStore) -> Layout:
    """The layers of the plan's model."""
    if request.model:
        model = load_model_index(request.model, revision=request.revision)
        fit_plan(plan, model)
        return Layout(model.name, model.layers, model.depth)
    runs = store.of_model(plan.model.identity, "routed", "weights", COUNTS_ALONE)
    if not runs:
        raise PlanError(
            f"No statistics of {plan.model.name} are here to tell its layers; name the checkpoint "
            "with --model."
        )
    return Layout(plan.model.name, runs[0].manifest.model.layers)


def _kept(plan: PruningPlan, grid: Grid) -> BoolArray:
    """(layers, experts): what the plan keeps; a layer that it does not name is whole."""
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


def _tell(call: Call[TrafficRequest], fit: TrafficFit) -> Outcome:
    """Shares by layer and corpus, and what they come to."""
    request = call.request
    nearest = next(iter(fit.corpora), "")
    best = float(fit.best.mean())
    words = f"the plan's experts hold {fit.today.whole:.1%} of today's routed choices"
    if fit.ranked:
        ranked = (f"{held.whole:.1%} of {name}" for name, held in fit.ranked.items())
        words += f", {', '.join(ranked)} that ranked it"
    words += f"; as many experts could hold {best:.1%}"
    if nearest and fit.chance is not None:
        near = fit.corpora[nearest].overlap
        words += f"; nearest is {nearest} (overlap {near:.2f}, chance {fit.chance:.2f})"
    numbers = {
        "held": fit.today.whole,
        "best": best,
        "requests": fit.num_requests,
        "tokens": fit.num_tokens,
        "chance": fit.chance,
        "layers": [
            {
                "layer": layer.index,
                "held": float(fit.today.layers[row]),
                "best": float(fit.best[row]),
                **{name: float(held.layers[row]) for name, held in fit.corpora.items()},
            }
            for row, layer in enumerate(fit.sparse)
        ],
        "corpora": [
            {
                "corpus": name,
                "run": held.run.manifest.run_id if held.run else "",
                "held": held.whole,
                "overlap": held.overlap,
                "ranked": name in fit.ranked,
            }
            for name, held in fit.corpora.items()
        ],
    }
    model = request.model or fit.plan.model.name
    place = option_words(request, only=("revision", "count", "skip_bad_rows", "stats_dir"))
    imported = command_line("runs", "import", *map(str, request.traces), "--model", model, *place)
    return Outcome(words, numbers, (Note(fit.words), *_tables(fit)), (imported,))


def _tables(fit: TrafficFit) -> tuple[Table, ...]:
    names = list(fit.corpora)
    rows: list[list[object]] = [
        [layer.index, fit.today.layers[row], fit.best[row]]
        + [fit.corpora[name].layers[row] for name in names]
        for row, layer in enumerate(fit.sparse)
    ]
    whole = [fit.today.whole, float(fit.best.mean()), *(fit.corpora[n].whole for n in names)]
    by_layer = Table(
        "Share of routed choices that the plan's experts hold",
        ("layer", "today", "best for today", *names),
        [*rows, ["all", *whole]],
        spare=tuple(names),
    )
    near = [
        [name, held.overlap, held.whole, "yes" if name in fit.ranked else ""]
        for name, held in fit.corpora.items()
    ]
    columns = ("corpus", "overlap with today", "held", "ranked the plan")
    title = "Corpora" if fit.chance is None else f"Corpora, nearest first (chance {fit.chance:.2f})"
    by_corpus = Table(title, columns, near)
    return (by_layer, by_corpus) if near else (by_layer,)


ACTION: Final = Action(
    TrafficRequest,
    _run,
    _tell,
    "traffic plan.json monday.jsonl",
    "traffic beside {about}",
)
