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
from app.charts import coverage, stratification
from app.charts.chart import Chart, Drawing
from app.charts.context import Context
from app.plots import benchmarks, comparison, evaluations, evidence, explore, published
from app.plots.benchmarks import Board
from app.plots.neuron_scenes import (
    beside_of_context,
    expert_of_context,
    kept_of_context,
    loss_of_context,
    overlap_of_context,
    saliency_of_context,
    same_bytes_of_context,
)
from app.plots.neurons import flops_of_context, layers_of_context
from app.plots.pareto import own_pareto_chart
from app.plots.paths import path_table, paths_chart
from app.plots.published import Setting
from app.plots.schedules import schedules_chart
from app.plots.search import best_chart, progress_chart, schedules_of_searches
from app.plots.variance import MOST_LINES, candidates_of, draws_of, variance_chart
from app.tables import maps
from pruning.plan import ATOMIC_GRANULARITY, EXPERT_GRANULARITY
from pruning.planning.make import evidence_of, make_plan, spending_of
from pruning.planning.planning import searched_rows
from pruning.schedules import side_by_side
from pruning.search.store import SearchStore, order_digest
from pruning.sizes import size_report


@dataclass(frozen=True)
class PaperChart:
    """One figure of what the papers report: of no model here, but of a block of their tables.

    Args:
        name, page, title: as of `Chart`.
        draw: the chart of a block, which is a table, a model of it, and a sparsity.
    """

    name: str
    page: str
    title: str
    draw: Callable[[Setting], Drawing]


def _overlap_map(context: Context) -> Drawing:
    about = context.about(f"gate {context.gate}")
    return explore.overlap_map_chart(
        context.variant_means, context.ranking_criterion.exponents, about
    )


def _overlap(context: Context) -> Drawing:
    criterion, request = context.routed_criterion(), context.request
    pairs = criterion_overlap(criterion, context.corpora_stats, request.gate, request.fraction)
    about = context.about(criterion.label, f"gate {request.gate}")
    return explore.overlap_chart(pairs, list(context.corpora_stats), about)


def _overlap_by_sparsity(context: Context) -> Drawing:
    names = dict.fromkeys((context.routed_criterion().name, *explore.CURVE_BESIDE))
    criteria = [get_criterion(name) for name in names]
    table = maps.overlap_curve(criteria, context.corpora_stats, context.gate)
    about = context.about(f"gate {context.gate}")
    return explore.curve_chart(table, float(context.request.fraction), about)


def _component_effects(context: Context) -> Drawing:
    return explore.effects_chart([context.variant_means], context.about(f"gate {context.gate}"))


def _overlap_maps(context: Context) -> Drawing:
    request = context.request
    shares = {*(Fraction(percent, 100) for percent in evidence.GRID_PERCENTS), request.fraction}
    table = evidence.grid_table(
        {context.model.name: context.corpora_stats}, request.gate, sorted(shares)
    )
    about = context.about(f"gate {request.gate}")
    return evidence.grid_chart(table, context.ranking_criterion.exponents, about)


def _overlap_by_tokens(context: Context) -> Drawing:
    context.check_removes()
    names = dict.fromkeys((context.routed_criterion().name, *explore.CURVE_BESIDE))
    parts = {
        corpus: [stats_at(run, count) for count in TOKEN_PARTS]
        for corpus, run in context.runs.items()
    }
    request, criteria = context.request, [get_criterion(name) for name in names]
    table = evidence.parts_table(parts, criteria, request.gate, request.fraction)
    return evidence.parts_chart(table, context.about(f"gate {request.gate}"))


def _damage_proxy(context: Context) -> Drawing:
    wanted = [parse_corpus_weight(text) for text in context.request.corpora][:1]
    request = context.request
    stats = choose_stats(get_criterion("damage"), context.store, context.model, wanted).stats
    if not isinstance(stats, ExpertStats):
        raise StatsError("The exact damage is measured on routed tokens.")
    is_variant = context.ranking_criterion.exponents is not None
    proxy = context.ranking_criterion if is_variant else get_criterion(evidence.PROXY)
    table = evidence.fate_table(stats, proxy, request.gate, request.fraction)
    return evidence.damage_chart(table, proxy, context.about(f"gate {request.gate}"))


def _paths(context: Context) -> Drawing:
    runs = newest_by_corpus(context.store.of_model(context.model.identity, "routed"), PATHFINDER)
    having = {corpus: run for corpus, run in runs.items() if "dense" in run.manifest.groups}
    if not having:
        raise StatsError(
            f"{context.model.name} has no statistics of samples; calibrate with --groups "
            "routed,dense."
        )
    choice = context.paths
    tables = {corpus: path_table(load_sample_stats(run), choice) for corpus, run in having.items()}
    return paths_chart(tables, choice, context.about(" ".join(choice.said())))


def _rank_flow(context: Context) -> Drawing:
    layer = evidence.most_moved(context.comparison)
    about = context.about_both()
    return evidence.rank_flow_chart(context.comparison, _names(context), (layer, None), about)


def _schedules(context: Context) -> Drawing:
    selection = context.first
    evidence = evidence_of(selection, selection.request)
    spending = spending_of(selection.request, selection.model, evidence)
    counts, _ = side_by_side(spending, evidence)
    known = SearchStore(context.store.directories).of_model(context.model)
    order = order_digest(selection.table)
    counts = pd.concat([counts, searched_rows(known, spending.budget.total, order)])
    return schedules_chart(counts, context.request.schedule, context.about_selection())


def _evaluation_curves(context: Context) -> Drawing:
    results, measure = context.evaluations, evaluations.usual_measure(context.evaluations)
    lit = evaluations.leading_series(results, measure)
    return evaluations.curves_chart(results, measure, "removed", context.model.name, lit)


def _pareto(context: Context) -> Drawing:
    results, name = context.evaluations, context.model.name
    measure, corpus = evaluations.usual_measure(results), str(results["corpus"].iloc[0])
    chart = own_pareto_chart(results, measure, corpus, name)
    if chart is None:
        raise StatsError(f"No pruned candidate of {name} was evaluated; see `moeprune sweep`.")
    return chart


def _hidden_states(context: Context) -> Drawing:
    results = context.hidden_states
    draw = next(iter(draws_of(results).values()))
    lit = candidates_of(results, draw)[:MOST_LINES]
    return variance_chart(results, draw, context.model.name, lit)


def _board(context: Context) -> Board:
    """The candidates at half removed, or at what comes nearest to it; of the usual way."""
    results = context.benchmarks
    way = benchmarks.ways_of(results)[0]
    shares = benchmarks.shares_of(results, way)
    share = min(shares, key=lambda each: abs(each - 0.5)) if shares else None
    return benchmarks.board_of(results, way, share, context.model.name)


def _benchmark_winners(context: Context) -> Drawing:
    results, name = context.benchmarks, context.model.name
    chart = benchmarks.own_winners_chart(results, benchmarks.ways_of(results)[0], name)
    return _of_pruned(chart, context)


def _benchmark_pareto(context: Context) -> Drawing:
    results, name = context.benchmarks, context.model.name
    board = benchmarks.board_of(results, benchmarks.ways_of(results)[0], None, name)
    return _of_pruned(benchmarks.benchmark_pareto_chart(board, {}), context)


def _of_pruned(chart: Drawing | None, context: Context) -> Drawing:
    if chart is None:
        raise StatsError(
            f"No pruned candidate of {context.model.name} was benchmarked; "
            "see `moeprune benchmark`."
        )
    return chart


def _own_winner_map(context: Context) -> Drawing:
    chart = evaluations.own_winner_chart(context.evaluations, context.model.name)
    if chart is None:
        raise StatsError(f"No evaluation of {context.model.name} measured ESAP; see `--fitness`.")
    return chart


def _sizes(context: Context) -> Drawing:
    report = size_report(context.model, make_plan(context.first, context.request).plan)
    return explore.sizes_chart(report.table, context.about_selection())


def _kept_by(context: Context) -> Drawing:
    return comparison.kept_by_chart(context.comparison, _names(context), context.about_both())


def _rank_rank(context: Context) -> Drawing:
    return comparison.rank_rank_chart(context.comparison, _names(context), context.about_both())


def _agreement(context: Context) -> Drawing:
    return comparison.agreement_chart(context.comparison, context.about_both())


def _names(context: Context) -> tuple[str, str]:
    return comparison.recipe_text(context.first), comparison.recipe_text(context.second)


_EACH = (
    stratification.STRATIFICATION,
    Chart("overlap-map", "explore", "Which variants depend on the text", _overlap_map),
    Chart("overlap", "explore", "What two texts agree on", _overlap),
    Chart(
        "overlap-by-sparsity",
        "explore",
        "How the agreement of texts changes with sparsity",
        _overlap_by_sparsity,
    ),
    Chart("component-effects", "explore", "What each exponent does", _component_effects),
    Chart("overlap-maps", "explore", "The variants at several sparsities", _overlap_maps),
    Chart("overlap-by-tokens", "explore", "How many tokens a choice needs", _overlap_by_tokens),
    Chart("damage-proxy", "explore", "How well a score predicts exact damage", _damage_proxy),
    Chart("paths", "explore", "Which experts the heaviest paths pass through", _paths),
    coverage.COVERAGE,
    stratification.SEPARATION,
    Chart("kept-by", "compare", "Which recipe keeps which expert", _kept_by),
    Chart("rank-rank", "compare", "How far the two orders agree", _rank_rank),
    Chart("rank-flow", "compare", "Who crosses the cut in one layer", _rank_flow),
    Chart("agreement", "compare", "In which layers the recipes agree", _agreement),
    Chart("schedules", "plan", "How each schedule spreads the budget", _schedules),
    Chart("pareto", "evaluate", "What quality each amount of memory buys", _pareto),
    Chart(
        "search",
        "plan",
        "How the search for a schedule went",
        lambda context: progress_chart(context.search),
    ),
    Chart(
        "search-best",
        "plan",
        "What the search's best schedule keeps",
        lambda context: best_chart(context.search),
    ),
    Chart(
        "search-schedules",
        "plan",
        "Where several searches put the budget, layer by layer",
        lambda context: schedules_of_searches(context.searches),
    ),
    Chart("evaluation-curves", "evaluate", "What pruning costs this model", _evaluation_curves),
    Chart("hidden-states", "evaluate", "How far hidden states change", _hidden_states),
    Chart(
        "own-capability",
        "evaluate",
        "What own candidates keep of each benchmark",
        lambda context: benchmarks.own_profile_chart(_board(context), radar=False),
    ),
    Chart(
        "own-capability-radar",
        "evaluate",
        "The same of own candidates as a radar",
        lambda context: benchmarks.own_profile_chart(_board(context), radar=True),
    ),
    Chart(
        "benchmark-winner-map",
        "evaluate",
        "Which candidate wins which benchmark",
        _benchmark_winners,
    ),
    Chart(
        "benchmark-pareto",
        "evaluate",
        "What benchmark average each amount of memory buys",
        _benchmark_pareto,
    ),
    Chart("own-winner-map", "evaluate", "Which candidate stays nearest", _own_winner_map),
    Chart(
        "neuron-layers",
        "plan",
        "What each layer loses of its neurons, by who competes with whom",
        layers_of_context,
        ATOMIC_GRANULARITY,
    ),
    Chart(
        "neuron-flops",
        "plan",
        "What removing neurons saves of a token's computation",
        flops_of_context,
        ATOMIC_GRANULARITY,
    ),
    Chart(
        "neurons-kept",
        "explore",
        "What stays of each expert when neurons go",
        kept_of_context,
        ATOMIC_GRANULARITY,
    ),
    Chart(
        "neuron-saliency",
        "explore",
        "How salient the neurons of each layer are",
        saliency_of_context,
        ATOMIC_GRANULARITY,
    ),
    Chart(
        "neurons-of-expert",
        "explore",
        "The neurons of the expert that is most nearly halved",
        expert_of_context,
        ATOMIC_GRANULARITY,
    ),
    Chart(
        "neuron-overlap",
        "explore",
        "What two texts agree on of the neurons that go",
        overlap_of_context,
        ATOMIC_GRANULARITY,
    ),
    Chart(
        "neurons-beside-experts",
        "explore",
        "Whether the neurons that go lie in experts that would go whole",
        beside_of_context,
        ATOMIC_GRANULARITY,
    ),
    Chart(
        "neuron-loss-bins",
        "explore",
        "Whether the score orders neurons as the loss does",
        lambda context: loss_of_context(context, ATOMIC_GRANULARITY),
        ATOMIC_GRANULARITY,
    ),
    Chart(
        "same-bytes",
        "explore",
        "Neurons or whole experts of the same bytes",
        same_bytes_of_context,
        ATOMIC_GRANULARITY,
    ),
    Chart(
        "loss-bins",
        "explore",
        "Whether the score orders experts as the loss does",
        lambda context: loss_of_context(context, EXPERT_GRANULARITY),
    ),
    Chart("sizes", "export", "What pruning saves", _sizes),
)
_OF_PAPERS = (
    PaperChart(
        "capability",
        "evaluate",
        "What each candidate keeps of each benchmark",
        lambda block: published.profile_chart(block, radar=False),
    ),
    PaperChart(
        "capability-radar",
        "evaluate",
        "The same as a radar",
        lambda block: published.profile_chart(block, radar=True),
    ),
    PaperChart(
        "winner-map",
        "evaluate",
        "Which candidate wins which benchmark, in every block of a table",
        lambda block: published.winner_chart(block.table),
    ),
)
CHARTS = {view.name: view for view in _EACH}
PAPER_CHARTS = {view.name: view for view in _OF_PAPERS}


def get_chart(name: str) -> Chart | PaperChart:
    """The view of this name.

    Raises:
        PlanError: there is none; names the nearest.
    """
    views: dict[str, Chart | PaperChart] = {**CHARTS, **PAPER_CHARTS}
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
