"""Separation per layer, and the map as a static figure."""

import numpy as np

from app.charts.stratification import (
    describe,
    describe_map,
    separation_figure,
    stratification_figure,
)


def named(fig, name):
    return [trace for trace in fig.data if trace.name == name]


def test_separation_has_both_measures_per_panel(separation):
    fig = separation_figure(separation)
    gap, band = named(fig, "AIMER")
    assert (list(gap.x), list(band.x)) == ([0.2, 0.0], [0.1, 0.3])
    assert list(gap.y) == ["3", "7"]
    assert (gap.showlegend, band.showlegend) == (True, False)


def test_panels_differ_by_symbol_and_first_layer_is_on_top(separation):
    fig = separation_figure(separation)
    assert named(fig, "AIMER")[0].marker.symbol != named(fig, "Magnitude")[0].marker.symbol
    low, high = fig.layout.yaxis.range
    assert low > high
    assert list(fig.layout.yaxis.categoryarray) == ["3", "7"]


def test_dumbbells_join_the_panels_of_one_layer_only(separation):
    bars = separation_figure(separation).data[0]
    assert list(bars.x) == [0.1, 0.2, None, 0.0, 0.3, None]
    assert list(bars.y) == ["3", "3", None, "7", "7", None]


def test_separation_description_puts_the_clearer_panel_first(separation):
    # Means: AIMER band 0.2, gap 0.1; Magnitude band 0.4, gap 0.2.
    assert describe(separation) == (
        "In the ambiguous band, mean over layers: AIMER leaves 20% of the experts (gap 0.100), "
        "Magnitude leaves 40% of the experts (gap 0.200)."
    )


def test_without_a_cut_there_is_nothing_to_judge(separation):
    uncut = separation.assign(gap=np.nan, band=np.nan)
    assert describe(uncut) == "No layer has a cut to judge: nothing is pruned."
    assert list(named(separation_figure(uncut), "AIMER")[0].y) == ["3", "7"]


def test_map_puts_rank_one_left_and_the_first_layer_on_top(ranked):
    fig = stratification_figure(ranked)
    heatmaps = [trace for trace in fig.data if trace.type == "heatmap"]
    assert len(heatmaps) == 2
    assert list(heatmaps[0].x) == [1, 2, 3, 4, 5]
    np.testing.assert_allclose(np.asarray(heatmaps[0].z, float)[0], [1, 0.75, 0.5, 0.25, 0])
    assert list(fig.layout.yaxis.range) == [1.5, -0.5]
    assert list(fig.layout.yaxis.ticktext) == ["3", "7"]


def test_map_leaves_experts_that_do_not_exist_blank(ranked):
    second_layer = np.asarray(stratification_figure(ranked).data[0].z, float)[1]
    assert np.isnan(second_layer).tolist() == [False, False, False, True, True]


def test_cut_steps_between_the_counts_of_the_layers(ranked):
    fig = stratification_figure(ranked)
    veil, halo, line = (
        trace for trace in fig.data if trace.type == "scatter" and trace.xaxis == "x"
    )
    assert list(line.x) == [3.5, 3.5, 2.5, 2.5]
    assert list(line.y) == [-0.5, 0.5, 0.5, 1.5]
    assert veil.fillpattern.shape == "/"
    assert max(veil.x) == 5.5
    assert halo.line.width > line.line.width


def test_nothing_pruned_draws_no_cut(ranked):
    fig = stratification_figure(ranked.assign(kept=True), dark=True)
    assert {trace.type for trace in fig.data} == {"heatmap"}


def test_one_panel_and_constant_layers_draw(ranked):
    flat = ranked[ranked["panel"] == "AIMER"].assign(value=0.0)
    fig = stratification_figure(flat)
    assert np.nanmax(np.asarray(fig.data[0].z, float)) == 0
    assert [annotation.text for annotation in fig.layout.annotations] == ["AIMER"]


def test_map_description_counts_kept_and_shared(ranked):
    # Magnitude keeps 4, 3, 2 of layer 3 and 2, 1 of layer 7; AIMER 0, 4, 3 and 0, 2: shared 3 of 5.
    assert describe_map(ranked) == ("Magnitude keeps 5 of 8 experts; AIMER keeps 60% of the same.")
