"""Figures of Explore: overlaps, exponents, separation, paths, tokens and damage."""

import numpy as np
import pandas as pd
import pytest

from app.charts import damage_proxy, effects, overlap_map, stratification
from app.charts import overlap as matrices
from app.charts import overlap_by_tokens as parts_curve
from app.charts import overlap_curve as curves
from app.charts import paths as path_frequency
from app.charts.overlap_map import clicked_variant, variant_map
from app.charts.stratification import (
    describe_map,
    separation_figure,
    stratification_figure,
)
from app.charts.theme import color_at, contrast


def test_matrix_is_symmetric_with_ones_and_gaps(corpora):
    (heatmap,) = matrices.overlap_matrix(corpora, chance=0.25).data
    assert list(heatmap.x) == list(heatmap.y) == ["code", "math", "prose"]
    wanted = [[1, 0.4, 0.7], [0.4, 1, np.nan], [0.7, np.nan, 1]]
    np.testing.assert_array_equal(heatmap.customdata, wanted)
    # 0.4 is a fifth of the way from 0.25 to 1, and 0.7 three fifths.
    np.testing.assert_allclose(heatmap.z, [[1, 0.2, 0.6], [0.2, 1, np.nan], [0.6, np.nan, 1]])


def test_matrix_writes_every_pair_and_chance(corpora):
    fig = matrices.overlap_matrix(corpora, chance=0.5)
    shown = [annotation.text for annotation in fig.layout.annotations]
    assert sorted(shown) == sorted(
        ["1.00"] * 3 + ["0.40"] * 2 + ["0.70"] * 2 + ["no data"] * 2 + ["two random sets: 0.50"]
    )
    assert fig.layout.yaxis.autorange == "reversed"


def test_matrix_shows_names_as_written(corpora):
    named = corpora.replace("code", "<b>code</b>")
    (heatmap,) = matrices.overlap_matrix(named, chance=0.5).data
    assert "&lt;b&gt;code&lt;/b&gt;" in heatmap.x


def test_matrix_description(corpora):
    assert matrices.describe(corpora, chance=0.5) == (
        "The pruned sets share 40% to 70% over pairs of corpora, least between math and code; "
        "two random sets would share 50%."
    )
    assert matrices.describe(corpora.iloc[:1], chance=0.5) == (
        "The sets pruned on code and prose share 70%; two random sets would share 50%."
    )
    assert (
        matrices.describe(corpora.iloc[:0], chance=0.5)
        == "No two corpora have an overlap to compare."
    )


def test_curve_has_dashed_chance_and_one_line_a_series(curve):
    chance, man, reap = curves.overlap_curve(curve, sparsity=0.5).data
    assert (chance.name, chance.line.dash, chance.mode) == ("chance", "dot", "lines")
    assert (man.name, reap.name) == ("MAN", "REAP")
    assert list(chance.y) == [0.25, 0.5, 0.75]


@pytest.mark.parametrize(
    ("sparsity", "text"),
    [
        (0.5, "At 50% sparsity the pruned sets share: MAN 90%; chance 50%."),
        (0.8, "At 75% sparsity the pruned sets share: MAN 95%, REAP 80%; chance 75%."),
    ],
)
def test_curve_description_is_at_the_nearest_sparsity(curve, sparsity, text):
    assert curves.describe(curve, sparsity=sparsity) == text


def texts(fig):
    return [annotation["text"] for annotation in fig.to_dict()["layout"]["annotations"]]


def traces(fig, kind):
    return [trace for trace in fig.data if trace.type == kind]


def test_rows_are_alpha_and_columns_beta_within_b(variants):
    left, right = traces(variant_map(variants), "heatmap")
    # With 0.2 by chance 0.1 is an eighth below, 0.5 three eighths and 0.9 seven eighths above.
    assert np.asarray(left.z, float)[2].tolist() == pytest.approx([-1 / 8, 3 / 8, 3 / 8])
    assert np.asarray(right.z, float)[0, 1:].tolist() == pytest.approx([3 / 8, 7 / 8])
    assert (left.zmin, left.zmax) == (0, 1)


def test_constant_variant_is_never_a_number(variants):
    table = variants.assign(b=variants["b"])
    table.loc[len(table)] = [1, 0, 0, 1.0, 0.2]
    for given in (variants, table):
        fig = variant_map(given)
        assert np.isnan(np.asarray(traces(fig, "heatmap")[1].z, float)[0, 0])
        assert sum("N/A" in text for text in texts(fig)) == 1
    assert traces(fig, "scatter")[0].fillpattern.shape == "/"


def test_numbers_contrast_with_their_cell(variants):
    for annotation in variant_map(variants).to_dict()["layout"]["annotations"]:
        number = annotation["text"].split("<br>")[0]
        if number in ("0.10", "0.50", "0.90"):
            cell = color_at((float(number) - 0.2) / 0.8)
            assert contrast(annotation["font"]["color"], cell) >= 4.5


def test_selected_variant_is_outlined(variants):
    assert not variant_map(variants).layout.shapes
    halo, line = variant_map(variants, selected=(0, 2, 1)).layout.shapes
    assert (line.x0, line.x1, line.y0, line.y1) == (0.5, 1.5, 1.5, 2.5)
    assert halo.line.width > line.line.width


def test_every_variant_can_be_clicked(variants):
    targets = traces(variant_map(variants), "scatter")[1]
    assert len({tuple(data) for data in targets.customdata}) == 18
    assert targets.marker.opacity == targets.selected.marker.opacity == 0
    assert targets.unselected.marker.opacity == 0


@pytest.mark.parametrize(
    ("points", "variant"),
    [
        ([{"customdata": [1, 0, 2]}], (1, 0, 2)),
        ([{"customdata": [1, 0, 0]}], (1, 0, 0)),
        ([], None),
        ([{"customdata": [2, 0, 0]}], None),
        ([{"customdata": ["x", 0, 0]}], None),
        ([{"customdata": [1, 0]}], None),
        ([{}], None),
    ],
)
def test_click_is_read_and_checked(points, variant):
    assert clicked_variant({"selection": {"points": points}}) == variant


def test_description_names_the_extremes(variants):
    assert overlap_map.describe(variants, 96) == (
        "Of 17 variants, MSAN (1, 0, 2) depends least on the calibration corpus (overlap 0.90) "
        "and (0, 2, 0) most (0.10); two random sets share 0.20."
    )
    assert "No overlap" in overlap_map.describe(variants.iloc[:0], 96)


def test_variants_within_two_experts_are_too_near_to_tell(variants):
    # Of 96 experts 0.77 and 0.75 are 74 and 72: two apart. Of 960 they are twenty apart.
    near = variants.replace({"overlap": {0.9: 74 / 96, 0.5: 72 / 96}})
    assert "(overlap 0.77, about equal to Frequency (0, 0, 0) and 14 more)" in (
        overlap_map.describe(near, 96)
    )
    assert "about equal" not in overlap_map.describe(near, 960)
    by_share = near.assign(model="one", sparsity=0.5)
    assert "about equal" in overlap_map.describe_grid(by_share, {0.5: 96})
    assert "about equal" not in overlap_map.describe_grid(by_share, {0.5: 960})
    rows = [("b", 0, 72 / 96), ("b", 1, 74 / 96), ("beta", 0, 0.5), ("beta", 2, 0.7)]
    table = pd.DataFrame(rows, columns=["component", "value", "overlap"])
    assert effects.describe(table, 96) == (
        "Most overlap between corpora with b at any value (too close to call), beta = 2 "
        "(+0.20 over the least)."
    )


def test_overlap_at_chance_is_dark_however_large_it_is():
    # 0.73 where three quarters go is under chance; 0.40 where a quarter goes is a fifth above it.
    rows = [(0.25, 0.40, 0.25), (0.75, 0.73, 0.75)]
    table = pd.DataFrame(rows, columns=["sparsity", "overlap", "chance"])
    table = table.assign(model="one", b=1, alpha=1, beta=1)
    quarter, most = (
        trace.z[1, 4] for trace in overlap_map.variant_grid(table).data if trace.type == "heatmap"
    )
    assert quarter == pytest.approx((0.40 - 0.25) / 0.75)
    assert most == pytest.approx((0.73 - 0.75) / 0.25)
    (hover,) = (
        trace.hovertext[10]
        for trace in overlap_map.variant_grid(table[1:]).data
        if trace.type == "scatter"
    )
    assert hover == "REAP (1, 1, 1)<br>overlap 0.730, by chance 0.750"


def test_a_range_of_variants_does_not_look_like_an_interval():
    table = pd.DataFrame({"component": ["b", "b"], "value": [0, 1], "overlap": [0.5, 0.6]})
    figure = effects.component_effects(table.assign(lowest=0.4, highest=0.7), chance=0.2)
    band, marks = figure.data
    assert marks.error_y.array is None
    assert list(band.y) == [0.4, 0.7, None] * 2
    assert band.name == "least to most of the variants with the value"


def named(fig, name):
    return [trace for trace in fig.data if trace.name == name]


def test_separation_has_both_measures_per_panel(separation):
    fig = separation_figure(separation)
    gap, band = named(fig, "AIMER")
    assert (list(gap.x), list(band.x)) == ([0.2, 0.0], [0.1, 0.3])
    assert list(gap.y) == ["3", "7"]
    assert (gap.showlegend, band.showlegend) == (True, False)


def test_separation_description_puts_the_clearer_panel_first(separation):
    # Means: AIMER band 0.2, gap 0.1; Magnitude band 0.4, gap 0.2.
    assert stratification.describe(separation) == (
        "In the ambiguous band, mean over layers: AIMER leaves 20% of the experts (gap 0.100), "
        "Magnitude leaves 40% of the experts (gap 0.200)."
    )


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
    # Light and even, so that the order of what is pruned is readable (it was hatched).
    assert veil.fillpattern.shape is None
    assert float(veil.fillcolor.rpartition(",")[2].rstrip(")")) <= 0.35
    assert max(veil.x) == 5.5
    assert halo.line.width > line.line.width


def test_map_description_counts_kept_and_shared(ranked):
    # Magnitude keeps 4, 3, 2 of layer 3 and 2, 1 of layer 7; AIMER 0, 4, 3 and 0, 2: shared 3 of 5.
    assert describe_map(ranked) == ("Magnitude keeps 5 of 8 experts; AIMER keeps 60% of the same.")


COUNTS = {"a": 4, "b": 2}


@pytest.fixture
def table():
    rows = [
        *[("a", 2, 0, 4, 0), ("a", 2, 1, 0, 3)],
        *[("a", 5, 0, 1, 2), ("a", 5, 1, 4, 1), ("a", 5, 2, 0, 4)],
        *[("b", 2, 0, 0, 3), ("b", 2, 1, 1, 1)],
        *[("b", 5, 0, 0, 4), ("b", 5, 1, 2, 0), ("b", 5, 2, 1, 2)],
    ]
    return pd.DataFrame(rows, columns=["corpus", "layer", "expert", "num_samples", "rank"])


@pytest.mark.parametrize("dark", [False, True])
def test_cells_hold_shares_and_what_is_said_of_them(table, dark):
    fig = path_frequency.path_frequency(table, COUNTS, dark=dark)
    first, second = fig.data
    # Layer 2 has two experts; who is on no path is empty too.
    nan = np.nan
    assert np.array_equal(first.z, [[1, nan, nan], [0.25, 1, nan]], equal_nan=True)
    assert np.array_equal(second.z, [[nan, 0.5, nan], [nan, 1, 0.5]], equal_nan=True)
    assert (first.zmin, first.zmax) == (second.zmin, second.zmax) == (0, 1)
    # Samples, and the rank counted from 1.
    assert first.customdata[1].tolist() == [[1, 3], [4, 2], [0, 5]]
    assert list(fig.layout.yaxis.ticktext) == ["2", "5"]
    titles = [each.text for each in fig.layout.annotations]
    assert titles == ["a: 4 samples", "b: 2 samples"]


def test_names_of_texts_are_plain_text(table):
    named = table.assign(corpus="<b>x</b>")
    fig = path_frequency.path_frequency(named.iloc[:5], {"<b>x</b>": 4})
    assert "<b>" not in fig.layout.annotations[0].text


def test_the_sentence_counts_experts(table):
    assert path_frequency.describe(table, COUNTS) == (
        "Of 5 experts, paths pass through 3 on a, 3 on b; 1 on every corpus and 0 on none."
    )
    assert path_frequency.describe(table.iloc[:5], {"a": 4}) == (
        "Of 5 experts, paths pass through 3 on a."
    )


@pytest.fixture
def parts():
    rows = [
        (corpus, criterion, tokens, overlap, 0.5)
        for corpus, shift in (("code", 0.0), ("math", 0.1))
        for criterion, least in (("REAP", 0.6), ("MAN", 0.8))
        for tokens, overlap in ((1000, least + shift), (4000, 1.0))
    ]
    return pd.DataFrame(rows, columns=["corpus", "criterion", "tokens", "overlap", "chance"])


@pytest.mark.parametrize("dark", [False, True])
def test_a_panel_a_text_a_line_a_criterion_and_chance(parts, dark):
    fig = parts_curve.parts_curve(parts, dark=dark)
    assert [note.text for note in fig.layout.annotations] == ["code", "math"]
    assert [each.name for each in fig.data] == ["chance", "REAP", "MAN"] * 2
    reap = fig.data[4]
    assert (list(reap.x), list(reap.y)) == (["1,000", "4,000"], [0.7, 1.0])
    assert reap.xaxis == "x2"
    # Each criterion is in the legend once, and looks the same in every panel.
    assert sum(each.showlegend is not False for each in fig.data) == 3
    assert fig.data[1].line.dash == reap.line.dash != fig.data[2].line.dash


@pytest.fixture
def damages():
    rows = [
        (0, 0, 10.0, 100.0, "both keep"),
        (0, 1, 1.0, 5.0, "both prune"),
        (0, 2, 0.1, 7.0, "only the damage prunes"),
        (0, 3, 0.0, 0.0, "both prune"),
    ]
    return pd.DataFrame(rows, columns=["layer", "expert", "damage", "proxy", "fate"])


def test_a_point_an_expert_and_zeros_are_counted_not_drawn(damages):
    fig = damage_proxy.damage_proxy(damages, proxy="EAN")
    assert [each.name for each in fig.data] == [
        "both keep: 1",
        "only the proxy prunes: 0",
        "only the damage prunes: 1",
        "both prune: 2",
    ]
    assert list(fig.data[3].x) == [5.0]
    assert fig.layout.xaxis.title.text == "saliency by EAN (not drawn: 1 expert at 0)"
    assert fig.layout.xaxis.type == fig.layout.yaxis.type == "log"
    assert len({each.marker.symbol for each in fig.data}) == 4
    assert damage_proxy.describe(damages, proxy="EAN") == (
        "EAN and the exact damage decide alike on 3 of 4 experts (75%)."
    )


def test_a_pinned_expert_is_marked_wherever_experts_are_drawn(damages, ranked, table):
    ring = damage_proxy.damage_proxy(damages, proxy="EAN", marked=(0, 2)).data[-1]
    assert (list(ring.x), list(ring.y)) == ([7.0], [0.1])
    assert ring.name == "pinned: layer 0, expert 2"
    # One of no damage has no place there.
    assert not len(damage_proxy.damage_proxy(damages, proxy="EAN", marked=(0, 3)).data[-1].x)
    # Magnitude ranks expert 2 of layer 7 first, AIMER expert 0; rank 1 lies around x = 1.
    frames = stratification_figure(ranked, marked=(7, 2)).layout.shapes[1::2]
    assert [(each.x0, each.y0, each.xref) for each in frames] == [(0.5, 0.5, "x"), (1.5, 0.5, "x2")]
    frames = path_frequency.path_frequency(table, COUNTS, marked=(5, 2)).layout.shapes[1::2]
    assert [(each.x0, each.y0, each.yref) for each in frames] == [(1.5, 0.5, "y"), (1.5, 0.5, "y2")]
    assert not path_frequency.path_frequency(table, COUNTS, marked=(9, 0)).layout.shapes


def test_nothing_but_zeros(damages):
    fig = damage_proxy.damage_proxy(damages.assign(damage=0.0), proxy="EAN")
    # No place on a logarithmic axis: no point is drawn, and the legend still counts them.
    assert sum(len(trace.x) for trace in fig.data) == 0
    counts = [int(trace.name.rpartition(": ")[2]) for trace in fig.data if ": " in trace.name]
    assert sum(counts) == len(damages)


@pytest.fixture
def grid(variants):
    tables = [
        variants.assign(model=model, sparsity=sparsity)
        for model in ("one", "two")
        for sparsity in (0.25, 0.5)
    ]
    return pd.concat(tables, ignore_index=True)


@pytest.mark.parametrize("dark", [False, True])
def test_a_panel_for_each_model_and_sparsity(grid, dark):
    fig = overlap_map.variant_grid(grid, selected=(0, 2, 1), dark=dark)
    titles = [note.text for note in fig.layout.annotations if "pruned" in note.text]
    assert titles == [
        f"{name}, {p}% pruned, chance 0.20" for name in ("one", "two") for p in (25, 50)
    ]
    cells = [each for each in fig.data if each.type == "heatmap"]
    assert len(cells) == 4
    z = cells[0].z
    # Rows are alpha; columns b, then beta: (1, 0, 2), (0, 2, 0), and the constant (1, 0, 0).
    assert z[0, 5] == pytest.approx((0.9 - 0.2) / 0.8)
    assert z[2, 0] == pytest.approx((0.1 - 0.2) / 0.8)
    assert np.isnan(z[0, 3])
    assert np.isfinite(z).sum() == 17


def test_numbers_read_on_their_cells(grid):
    fig = overlap_map.variant_grid(grid)
    numbers = [note for note in fig.layout.annotations if "pruned" not in note.text]
    assert len(numbers) == 4 * 18
    last = {(note.x, note.y): note.text for note in numbers if note.xref == "x4"}
    assert (last[5, 0], last[3, 0], last[0, 2]) == ("0.90", "N/A", "0.10")
    for note in numbers:
        if note.text != "N/A":
            cell = color_at((float(note.text) - 0.2) / 0.8)
            assert contrast(note.font.color, cell) >= 4.5


def test_each_cell_says_its_variant_and_sparsity_when_clicked(grid):
    targets = [each for each in overlap_map.variant_grid(grid).data if each.type == "scatter"]
    assert len(targets) == 4
    # The sixth cell of the first row: b = 1, alpha = 0, beta = 2; the second panel is of 50%.
    assert targets[1].customdata[5] == [1, 0, 2, 50]
    assert (targets[1].x[5], targets[1].y[5]) == (5, 0)


@pytest.mark.parametrize(
    ("point", "found"),
    [
        ([1, 0, 2, 25], ((1, 0, 2), 25)),
        ([1, 0, 3, 25], None),
        ([1, 0, 2, 101], None),
        ([1, 0, 2], None),
        ("text", None),
        (None, None),
    ],
)
def test_a_click(point, found):
    assert overlap_map.clicked_cell({"selection": {"points": [{"customdata": point}]}}) == found
    assert overlap_map.clicked_cell({"selection": {"points": []}}) is None


def test_curve_sorts_sparsity_and_leaves_gaps(curve):
    _, _, reap = curves.overlap_curve(curve.iloc[::-1], dark=True, sparsity=0.5).data[:3]
    assert list(reap.x) == [0.25, 0.5, 0.75]
    reap = curves.overlap_curve(curve, sparsity=0.5).data[2]
    assert np.isnan(reap.y[1])
    assert not reap.connectgaps


def test_the_height_is_bounded():
    rows = [("a", layer, 0, 1, layer) for layer in range(200)]
    table = pd.DataFrame(rows, columns=["corpus", "layer", "expert", "num_samples", "rank"])
    fig = path_frequency.path_frequency(table, {"a": 1})
    assert fig.layout.height < 600
    assert len(fig.layout.yaxis.tickvals) < 30


def test_dumbbells_join_the_panels_of_one_layer_only(separation):
    bars = separation_figure(separation).data[0]
    assert list(bars.x) == [0.1, 0.2, None, 0.0, 0.3, None]
    assert list(bars.y) == ["3", "3", None, "7", "7", None]


def test_without_a_cut_there_is_nothing_to_judge(separation):
    uncut = separation.assign(gap=np.nan, band=np.nan)
    assert stratification.describe(uncut) == "No layer has a cut to judge: nothing is pruned."
    assert list(named(separation_figure(uncut), "AIMER")[0].y) == ["3", "7"]


def test_nothing_pruned_draws_no_cut(ranked):
    fig = stratification_figure(ranked.assign(kept=True), dark=True)
    assert {trace.type for trace in fig.data} == {"heatmap"}


def test_one_panel_and_constant_layers_draw(ranked):
    flat = ranked[ranked["panel"] == "AIMER"].assign(value=0.0)
    fig = stratification_figure(flat)
    assert np.nanmax(np.asarray(fig.data[0].z, float)) == 0
    assert [annotation.text for annotation in fig.layout.annotations] == ["AIMER"]


def test_missing_and_nan_variants_say_so(variants):
    table = variants.iloc[1:].copy()
    table.loc[table.index[0], "overlap"] = np.nan
    assert sum("no data" in text for text in texts(variant_map(table))) == 2
