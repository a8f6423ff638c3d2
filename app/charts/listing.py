"""The figures of the dashboard, listed once: what `moeprune plot` and reports can draw."""

import pandas as pd

from analysis.errors import PlanError, unknown_name
from app.charts import (
    benchmarks,
    coverage,
    damage_proxy,
    effects,
    evaluation_curves,
    hidden_states,
    kept_by,
    layer_agreement,
    loss_bins,
    neuron_layers,
    neuron_overlap,
    neuron_saliency,
    neurons_kept,
    overlap,
    overlap_by_tokens,
    overlap_curve,
    overlap_map,
    overlap_maps,
    pareto,
    paths,
    rank_flow,
    rank_rank,
    same_bytes,
    stratification,
    winner_map,
)
from app.charts.chart import Chart, Drawing
from app.charts.context import Context
from app.charts.published import PAPER_CHARTS, PaperChart
from app.plots import explore
from app.plots.schedules import schedules_chart
from app.plots.search import best_chart, progress_chart, schedules_of_searches
from pruning.planning.make import evidence_of, make_plan, spending_of
from pruning.planning.planning import searched_rows
from pruning.schedules import side_by_side
from pruning.search.store import SearchStore, order_digest
from pruning.sizes import size_report


def _schedules(context: Context) -> Drawing:
    selection = context.first
    evidence = evidence_of(selection, selection.request)
    spending = spending_of(selection.request, selection.model, evidence)
    counts, _ = side_by_side(spending, evidence)
    known = SearchStore(context.store.directories).of_model(context.model)
    order = order_digest(selection.table)
    counts = pd.concat([counts, searched_rows(known, spending.budget.total, order)])
    return schedules_chart(counts, context.request.schedule, context.about_selection())


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
    pareto.PARETO,
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
    evaluation_curves.EVALUATION_CURVES,
    hidden_states.HIDDEN_STATES,
    benchmarks.OWN_CAPABILITY,
    benchmarks.OWN_CAPABILITY_RADAR,
    benchmarks.BENCHMARK_WINNER_MAP,
    benchmarks.BENCHMARK_PARETO,
    winner_map.OWN_WINNER_MAP,
    neuron_layers.NEURON_LAYERS,
    neuron_layers.NEURON_FLOPS,
    neurons_kept.NEURONS_KEPT,
    neuron_saliency.NEURON_SALIENCY,
    neuron_saliency.NEURONS_OF_EXPERT,
    neuron_overlap.NEURON_OVERLAP,
    neurons_kept.NEURONS_BESIDE_EXPERTS,
    loss_bins.NEURON_LOSS_BINS,
    same_bytes.SAME_BYTES,
    loss_bins.LOSS_BINS,
    Chart("sizes", "export", "What pruning saves", _sizes),
)
CHARTS = {view.name: view for view in _EACH}


def get_chart(name: str) -> Chart | PaperChart:
    """The view of this name.

    Raises:
        PlanError: there is none; names the nearest.
    """
    views: dict[str, Chart | PaperChart] = {**CHARTS, **PAPER_CHARTS}
    if name not in views:
        raise PlanError(f"{unknown_name('view', name, views)} `moeprune plot --list` lists them.")
    return views[name]
