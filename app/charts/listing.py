"""The figures of the dashboard, listed once: what `moeprune plot` and reports can draw."""

from collections.abc import Callable
from dataclasses import dataclass

import pandas as pd

from analysis.errors import PlanError, StatsError, unknown_name
from app.charts import (
    coverage,
    damage_proxy,
    effects,
    kept_by,
    layer_agreement,
    neuron_layers,
    neuron_overlap,
    neuron_saliency,
    neurons_kept,
    overlap,
    overlap_by_tokens,
    overlap_curve,
    overlap_map,
    overlap_maps,
    paths,
    rank_flow,
    rank_rank,
    same_bytes,
    stratification,
)
from app.charts.chart import Chart, Drawing
from app.charts.context import Context
from app.plots import benchmarks, evaluations, explore, published
from app.plots.benchmarks import Board
from app.plots.loss_bins import loss_of_context
from app.plots.pareto import own_pareto_chart
from app.plots.published import Setting
from app.plots.schedules import schedules_chart
from app.plots.search import best_chart, progress_chart, schedules_of_searches
from app.plots.variance import MOST_LINES, candidates_of, draws_of, variance_chart
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


_EACH = (
    stratification.STRATIFICATION,
    overlap_map.OVERLAP_MAP,
    overlap.OVERLAP,
    overlap_curve.OVERLAP_CURVE,
    effects.EFFECTS,
    overlap_maps.OVERLAP_MAPS,
    overlap_by_tokens.OVERLAP_BY_TOKENS,
    damage_proxy.DAMAGE_PROXY,
    paths.PATHS,
    coverage.COVERAGE,
    stratification.SEPARATION,
    kept_by.KEPT_BY,
    rank_rank.RANK_RANK,
    rank_flow.RANK_FLOW,
    layer_agreement.AGREEMENT,
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
    neuron_layers.NEURON_LAYERS,
    neuron_layers.NEURON_FLOPS,
    neurons_kept.NEURONS_KEPT,
    neuron_saliency.NEURON_SALIENCY,
    neuron_saliency.NEURONS_OF_EXPERT,
    neuron_overlap.NEURON_OVERLAP,
    neurons_kept.NEURONS_BESIDE_EXPERTS,
    Chart(
        "neuron-loss-bins",
        "explore",
        "Whether the score orders neurons as the loss does",
        lambda context: loss_of_context(context, ATOMIC_GRANULARITY),
        ATOMIC_GRANULARITY,
    ),
    same_bytes.SAME_BYTES,
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
