"""All charts of the dashboard, `moeprune plot` and reports."""

from analysis.errors import PlanError, did_you_mean
from app.charts import (
    benchmarks,
    corpus_pair,
    coverage,
    damage_proxy,
    effects,
    evaluation_curves,
    hidden_states,
    kept_by,
    layer_agreement,
    loss_bins,
    loss_by_size,
    loss_by_tokens,
    neurons,
    overlap,
    overlap_by_tokens,
    overlap_map,
    pareto,
    paths,
    predicted_frontier,
    same_bytes,
    schedules,
    search,
    sensitivity,
    sizes,
    stratification,
    text_lens,
    token_experts,
    variant_losses,
)
from app.charts.chart import Chart
from app.charts.published import PAPER_CHARTS, PaperChart

_EACH: tuple[Chart, ...] = (
    stratification.draw,
    overlap_map.draw,
    variant_losses.draw,
    overlap.draw,
    corpus_pair.draw_map,
    corpus_pair.draw_agreement,
    effects.draw,
    overlap_by_tokens.draw,
    loss_by_tokens.draw,
    loss_by_size.draw,
    damage_proxy.draw,
    paths.draw,
    coverage.draw,
    kept_by.draw,
    layer_agreement.draw,
    schedules.draw,
    pareto.draw,
    sensitivity.draw_lines,
    sensitivity.draw_layer_map,
    predicted_frontier.draw,
    search.draw_progress,
    search.draw_best,
    evaluation_curves.draw,
    hidden_states.draw,
    text_lens.draw_tokens,
    text_lens.draw_experts,
    text_lens.draw_plans,
    token_experts.draw,
    benchmarks.dots,
    neurons.draw_layers,
    neurons.draw_flops,
    sensitivity.draw_neuron_lines,
    sensitivity.draw_neuron_map,
    predicted_frontier.draw_neuron_frontier,
    neurons.draw_kept,
    neurons.draw_saliency,
    neurons.draw_expert,
    overlap.draw_neuron_overlap,
    neurons.draw_tenths,
    loss_bins.draw_neuron_bins,
    same_bytes.draw,
    loss_bins.draw_expert_bins,
    sizes.draw,
)
CHARTS = {chart.name: chart for chart in _EACH}


def get_chart(name: str) -> Chart | PaperChart:
    """The chart of this name, including those of papers."""
    views: dict[str, Chart | PaperChart] = {**CHARTS, **PAPER_CHARTS}
    if name not in views:
        hint = did_you_mean(name, views)
        raise PlanError(f"Unknown view {name!r}.{hint} `moeprune plot --list` lists all.")
    return views[name]
