"""The figures of the dashboard, listed once: what `moeprune plot` and reports can draw."""

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
    schedules,
    search,
    sizes,
    stratification,
    winner_map,
)
from app.charts.chart import Chart
from app.charts.published import PAPER_CHARTS, PaperChart

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
    schedules.SCHEDULES,
    pareto.PARETO,
    search.SEARCH,
    search.SEARCH_BEST,
    search.SEARCH_SCHEDULES,
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
    overlap.NEURON_OVERLAP,
    neurons_kept.NEURONS_BESIDE_EXPERTS,
    loss_bins.NEURON_LOSS_BINS,
    same_bytes.SAME_BYTES,
    loss_bins.LOSS_BINS,
    sizes.SIZES,
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
