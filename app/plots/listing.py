"""The figures of the dashboard, listed once: what `moeprune plot` and reports can draw."""

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

import pandas as pd

from analysis.criteria import get_criterion
from analysis.criteria.pathfinder import PATHFINDER
from analysis.errors import PlanError, StatsError, unknown_name
from analysis.ranking.overlap import criterion_overlap
from analysis.stats.choose import choose_stats, newest_by_corpus, parse_corpus_weight
from analysis.stats.shards import TOKEN_PARTS, stats_at
from analysis.stats.store import load_sample_stats
from analysis.stats.tables import ExpertStats
from app.plots import benchmarks, comparison, evaluations, evidence, explore, published
from app.plots.benchmarks import Board
from app.plots.chart import Chart
from app.plots.neuron_scenes import (
    beside_of_scene,
    expert_of_scene,
    kept_of_scene,
    loss_of_scene,
    overlap_of_scene,
    saliency_of_scene,
    same_bytes_of_scene,
)
from app.plots.neurons import flops_of_scene, layers_of_scene
from app.plots.pareto import own_pareto_chart
from app.plots.paths import path_table, paths_chart
from app.plots.published import Setting
from app.plots.scene import Scene
from app.plots.schedules import schedules_chart
from app.plots.search import best_chart, progress_chart, schedules_of_searches
from app.plots.variance import MOST_LINES, candidates_of, draws_of, variance_chart
from app.tables import maps
from pruning.plan import ATOMIC_GRANULARITY, EXPERT_GRANULARITY
from pruning.planning.planning import searched_rows
from pruning.schedules import side_by_side
from pruning.search.store import SearchStore, order_digest
from pruning.sizes import size_report


@dataclass(frozen=True)
class PlotView:
    """One figure of the dashboard.

    Args:
        name: VIEW of the command line, and the name of the chart.
        page: the page that shows it.
        title: what it answers, as a heading.
        draw: the chart of a scene.
        granularity: what is removed in it.
    """

    name: str
    page: str
    title: str
    draw: Callable[[Scene], Chart]
    granularity: str = EXPERT_GRANULARITY


@dataclass(frozen=True)
class PaperView:
    """One figure of what the papers report: of no model here, but of a block of their tables.

    Args:
        name, page, title: as of `PlotView`.
        draw: the chart of a block, which is a table, a model of it, and a sparsity.
    """

    name: str
    page: str
    title: str
    draw: Callable[[Setting], Chart]


def _stratification(scene: Scene) -> Chart:
    table = maps.ranked_experts(scene.ranked(), scene.request.fraction)
    return explore.stratification_chart(table, scene.about_both())


def _overlap_map(scene: Scene) -> Chart:
    about = scene.about(f"gate {scene.request.gate}")
    return explore.overlap_map_chart(scene.variant_means, scene.criterion.exponents, about)


def _overlap(scene: Scene) -> Chart:
    criterion, request = scene.routed_criterion(), scene.request
    pairs = criterion_overlap(criterion, scene.texts, request.gate, request.fraction)
    about = scene.about(criterion.label, f"gate {request.gate}")
    return explore.overlap_chart(pairs, list(scene.texts), about)


def _overlap_by_sparsity(scene: Scene) -> Chart:
    names = dict.fromkeys((scene.routed_criterion().name, *explore.CURVE_BESIDE))
    criteria = [get_criterion(name) for name in names]
    table = maps.overlap_curve(criteria, scene.texts, scene.request.gate)
    about = scene.about(f"gate {scene.request.gate}")
    return explore.curve_chart(table, float(scene.request.fraction), about)


def _component_effects(scene: Scene) -> Chart:
    return explore.effects_chart([scene.variant_means], scene.about(f"gate {scene.request.gate}"))


def _overlap_maps(scene: Scene) -> Chart:
    request = scene.request
    shares = {*(Fraction(percent, 100) for percent in evidence.GRID_PERCENTS), request.fraction}
    table = evidence.grid_table({scene.model.name: scene.texts}, request.gate, sorted(shares))
    about = scene.about(f"gate {request.gate}")
    return evidence.grid_chart(table, scene.criterion.exponents, about)


def _overlap_by_tokens(scene: Scene) -> Chart:
    scene.check_removes()
    names = dict.fromkeys((scene.routed_criterion().name, *explore.CURVE_BESIDE))
    parts = {
        corpus: [stats_at(run, count) for count in TOKEN_PARTS]
        for corpus, run in scene.runs.items()
    }
    request, criteria = scene.request, [get_criterion(name) for name in names]
    table = evidence.parts_table(parts, criteria, request.gate, request.fraction)
    return evidence.parts_chart(table, scene.about(f"gate {request.gate}"))


def _damage_proxy(scene: Scene) -> Chart:
    wanted = [parse_corpus_weight(text) for text in scene.request.corpora][:1]
    request = scene.request
    stats = choose_stats(get_criterion("damage"), scene.store, scene.model, wanted).stats
    if not isinstance(stats, ExpertStats):
        raise StatsError("The exact damage is measured on routed tokens.")
    is_variant = scene.criterion.exponents is not None
    proxy = scene.criterion if is_variant else get_criterion(evidence.PROXY)
    table = evidence.fate_table(stats, proxy, request.gate, request.fraction)
    return evidence.damage_chart(table, proxy, scene.about(f"gate {request.gate}"))


def _paths(scene: Scene) -> Chart:
    runs = newest_by_corpus(scene.store.of_model(scene.model.identity, "routed"), PATHFINDER)
    having = {corpus: run for corpus, run in runs.items() if "dense" in run.manifest.groups}
    if not having:
        raise StatsError(
            f"{scene.model.name} has no statistics of samples; calibrate with --groups "
            "routed,dense."
        )
    choice = scene.paths
    tables = {corpus: path_table(load_sample_stats(run), choice) for corpus, run in having.items()}
    return paths_chart(tables, choice, scene.about(" ".join(choice.said())))


def _rank_flow(scene: Scene) -> Chart:
    layer = evidence.most_moved(scene.comparison)
    about = scene.about_both()
    return evidence.rank_flow_chart(scene.comparison, _names(scene), (layer, None), about)


def _coverage(scene: Scene) -> Chart:
    table = explore.coverage_table(scene.blender(), scene.weights)
    source = " + ".join(scene.request.corpora)
    return explore.coverage_chart(table, scene.about(scene.criterion.label, source))


def _separation(scene: Scene) -> Chart:
    scene.check_removes()
    panels = scene.ranked()
    table = maps.separations(panels, scene.request.fraction)
    names = " beside ".join(each.criterion.label for each in panels)
    return explore.separation_chart(table, scene.about(names))


def _schedules(scene: Scene) -> Chart:
    selection = scene.first
    ranking = selection.ranking()
    evidence = selection.evidence(ranking)
    spending = selection.spending(evidence)
    counts, _ = side_by_side(spending, evidence)
    known = SearchStore(scene.store.directories).of_model(scene.model)
    order = order_digest(ranking)
    counts = pd.concat([counts, searched_rows(known, spending.budget.total, order)])
    return schedules_chart(counts, scene.request.schedule, scene.about_selection())


def _evaluation_curves(scene: Scene) -> Chart:
    results, measure = scene.evaluations, evaluations.usual_measure(scene.evaluations)
    lit = evaluations.leading_series(results, measure)
    return evaluations.curves_chart(results, measure, "removed", scene.model.name, lit)


def _pareto(scene: Scene) -> Chart:
    results, name = scene.evaluations, scene.model.name
    measure, corpus = evaluations.usual_measure(results), str(results["corpus"].iloc[0])
    chart = own_pareto_chart(results, measure, corpus, name)
    if chart is None:
        raise StatsError(f"No pruned candidate of {name} was evaluated; see `moeprune sweep`.")
    return chart


def _hidden_states(scene: Scene) -> Chart:
    results = scene.hidden_states
    draw = next(iter(draws_of(results).values()))
    lit = candidates_of(results, draw)[:MOST_LINES]
    return variance_chart(results, draw, scene.model.name, lit)


def _board(scene: Scene) -> Board:
    """The candidates at half removed, or at what comes nearest to it; of the usual way."""
    results = scene.benchmarks
    way = benchmarks.ways_of(results)[0]
    shares = benchmarks.shares_of(results, way)
    share = min(shares, key=lambda each: abs(each - 0.5)) if shares else None
    return benchmarks.board_of(results, way, share, scene.model.name)


def _benchmark_winners(scene: Scene) -> Chart:
    results, name = scene.benchmarks, scene.model.name
    chart = benchmarks.own_winners_chart(results, benchmarks.ways_of(results)[0], name)
    return _of_pruned(chart, scene)


def _benchmark_pareto(scene: Scene) -> Chart:
    results, name = scene.benchmarks, scene.model.name
    board = benchmarks.board_of(results, benchmarks.ways_of(results)[0], None, name)
    return _of_pruned(benchmarks.benchmark_pareto_chart(board, {}), scene)


def _of_pruned(chart: Chart | None, scene: Scene) -> Chart:
    if chart is None:
        raise StatsError(
            f"No pruned candidate of {scene.model.name} was benchmarked; see `moeprune benchmark`."
        )
    return chart


def _own_winner_map(scene: Scene) -> Chart:
    chart = evaluations.own_winner_chart(scene.evaluations, scene.model.name)
    if chart is None:
        raise StatsError(f"No evaluation of {scene.model.name} measured ESAP; see `--fitness`.")
    return chart


def _sizes(scene: Scene) -> Chart:
    report = size_report(scene.model, scene.first.plan())
    return explore.sizes_chart(report.table, scene.about_selection())


def _kept_by(scene: Scene) -> Chart:
    return comparison.kept_by_chart(scene.comparison, _names(scene), scene.about_both())


def _rank_rank(scene: Scene) -> Chart:
    return comparison.rank_rank_chart(scene.comparison, _names(scene), scene.about_both())


def _agreement(scene: Scene) -> Chart:
    return comparison.agreement_chart(scene.comparison, scene.about_both())


def _names(scene: Scene) -> tuple[str, str]:
    return comparison.recipe_text(scene.first), comparison.recipe_text(scene.second)


_EACH = (
    PlotView("stratification", "explore", "Which experts each criterion keeps", _stratification),
    PlotView("overlap-map", "explore", "Which variants depend on the text", _overlap_map),
    PlotView("overlap", "explore", "What two texts agree on", _overlap),
    PlotView(
        "overlap-by-sparsity",
        "explore",
        "How the agreement of texts changes with sparsity",
        _overlap_by_sparsity,
    ),
    PlotView("component-effects", "explore", "What each exponent does", _component_effects),
    PlotView("overlap-maps", "explore", "The variants at several sparsities", _overlap_maps),
    PlotView("overlap-by-tokens", "explore", "How many tokens a choice needs", _overlap_by_tokens),
    PlotView("damage-proxy", "explore", "How well a score predicts exact damage", _damage_proxy),
    PlotView("paths", "explore", "Which experts the heaviest paths pass through", _paths),
    PlotView("coverage", "explore", "How much of each text's saliency is kept", _coverage),
    PlotView("separation", "explore", "How clear the cut is", _separation),
    PlotView("kept-by", "compare", "Which recipe keeps which expert", _kept_by),
    PlotView("rank-rank", "compare", "How far the two orders agree", _rank_rank),
    PlotView("rank-flow", "compare", "Who crosses the cut in one layer", _rank_flow),
    PlotView("agreement", "compare", "In which layers the recipes agree", _agreement),
    PlotView("schedules", "plan", "How each schedule spreads the budget", _schedules),
    PlotView("pareto", "evaluate", "What quality each amount of memory buys", _pareto),
    PlotView(
        "search",
        "plan",
        "How the search for a schedule went",
        lambda scene: progress_chart(scene.search),
    ),
    PlotView(
        "search-best",
        "plan",
        "What the search's best schedule keeps",
        lambda scene: best_chart(scene.search),
    ),
    PlotView(
        "search-schedules",
        "plan",
        "Where several searches put the budget, layer by layer",
        lambda scene: schedules_of_searches(scene.searches),
    ),
    PlotView("evaluation-curves", "evaluate", "What pruning costs this model", _evaluation_curves),
    PlotView("hidden-states", "evaluate", "How far hidden states change", _hidden_states),
    PlotView(
        "own-capability",
        "evaluate",
        "What own candidates keep of each benchmark",
        lambda scene: benchmarks.own_profile_chart(_board(scene), radar=False),
    ),
    PlotView(
        "own-capability-radar",
        "evaluate",
        "The same of own candidates as a radar",
        lambda scene: benchmarks.own_profile_chart(_board(scene), radar=True),
    ),
    PlotView(
        "benchmark-winner-map",
        "evaluate",
        "Which candidate wins which benchmark",
        _benchmark_winners,
    ),
    PlotView(
        "benchmark-pareto",
        "evaluate",
        "What benchmark average each amount of memory buys",
        _benchmark_pareto,
    ),
    PlotView("own-winner-map", "evaluate", "Which candidate stays nearest", _own_winner_map),
    PlotView(
        "neuron-layers",
        "plan",
        "What each layer loses of its neurons, by who competes with whom",
        layers_of_scene,
        ATOMIC_GRANULARITY,
    ),
    PlotView(
        "neuron-flops",
        "plan",
        "What removing neurons saves of a token's computation",
        flops_of_scene,
        ATOMIC_GRANULARITY,
    ),
    PlotView(
        "neurons-kept",
        "explore",
        "What stays of each expert when neurons go",
        kept_of_scene,
        ATOMIC_GRANULARITY,
    ),
    PlotView(
        "neuron-saliency",
        "explore",
        "How salient the neurons of each layer are",
        saliency_of_scene,
        ATOMIC_GRANULARITY,
    ),
    PlotView(
        "neurons-of-expert",
        "explore",
        "The neurons of the expert that is most nearly halved",
        expert_of_scene,
        ATOMIC_GRANULARITY,
    ),
    PlotView(
        "neuron-overlap",
        "explore",
        "What two texts agree on of the neurons that go",
        overlap_of_scene,
        ATOMIC_GRANULARITY,
    ),
    PlotView(
        "neurons-beside-experts",
        "explore",
        "Whether the neurons that go lie in experts that would go whole",
        beside_of_scene,
        ATOMIC_GRANULARITY,
    ),
    PlotView(
        "neuron-loss-bins",
        "explore",
        "Whether the score orders neurons as the loss does",
        lambda scene: loss_of_scene(scene, ATOMIC_GRANULARITY),
        ATOMIC_GRANULARITY,
    ),
    PlotView(
        "same-bytes",
        "explore",
        "Neurons or whole experts of the same bytes",
        same_bytes_of_scene,
        ATOMIC_GRANULARITY,
    ),
    PlotView(
        "loss-bins",
        "explore",
        "Whether the score orders experts as the loss does",
        lambda scene: loss_of_scene(scene, EXPERT_GRANULARITY),
    ),
    PlotView("sizes", "export", "What pruning saves", _sizes),
)
_OF_PAPERS = (
    PaperView(
        "capability",
        "evaluate",
        "What each candidate keeps of each benchmark",
        lambda block: published.profile_chart(block, radar=False),
    ),
    PaperView(
        "capability-radar",
        "evaluate",
        "The same as a radar",
        lambda block: published.profile_chart(block, radar=True),
    ),
    PaperView(
        "winner-map",
        "evaluate",
        "Which candidate wins which benchmark, in every block of a table",
        lambda block: published.winner_chart(block.table),
    ),
)
VIEWS = {view.name: view for view in _EACH}
PAPER_VIEWS = {view.name: view for view in _OF_PAPERS}


def get_view(name: str) -> PlotView | PaperView:
    """The view of this name.

    Raises:
        PlanError: there is none; names the nearest.
    """
    views: dict[str, PlotView | PaperView] = {**VIEWS, **PAPER_VIEWS}
    if name not in views:
        raise PlanError(f"{unknown_name('view', name, views)} `moeprune plot --list` lists them.")
    return views[name]


def block_of(table: str, block: str | None) -> Setting:
    """The block "MODEL SPARSITY%" of a paper's table; the first where none is named.

    Raises:
        StatsError: no such table, or no such block of it.
    """
    if table not in published.TABLES:
        raise StatsError(unknown_name("table of a paper", table, published.TABLES))
    blocks = published.blocks_of(table)
    if block is None:
        return next(iter(blocks.values()))
    if block not in blocks:
        raise StatsError(unknown_name(f"block of {table}", block, blocks))
    return blocks[block]
