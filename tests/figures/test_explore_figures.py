"""Figures of Explore: overlaps, exponents, separation, paths, tokens and damage."""

import numpy as np
import pandas as pd
import pytest

from app.charts import damage_proxy, effects, overlap, overlap_map, paths
from app.charts import traces as app_traces
from app.charts.overlap_by_tokens import parts_curve
from app.charts.overlap_map import clicked_variant, variant_map
from app.charts.stratification import describe as describe_strata
from app.charts.stratification import stratification_figure
from app.charts.theme import color_at, contrast


def traces(fig, kind):
    return [trace for trace in fig.data if trace.type == kind]


def texts(fig):
    return [annotation.text for annotation in fig.layout.annotations]


def test_the_matrix_is_symmetric_with_ones_gaps_and_chance(corpora):
    fig = overlap.overlap_heatmap(corpora, chance=0.25)
    heatmap, marks = fig.data
    assert list(heatmap.x) == list(heatmap.y) == ["code", "math", "prose"]
    wanted = [[1, 0.4, 0.7], [0.4, 1, np.nan], [0.7, np.nan, 1]]
    np.testing.assert_array_equal([row[2] for row in marks.customdata], np.ravel(wanted))
    selected = {"selection": {"points": [{"customdata": marks.customdata[5]}]}}
    assert overlap.clicked_pair(selected, heatmap.x) == ("math", "prose")
    selected = {"selection": {"points": [{"customdata": marks.customdata[4]}]}}
    assert overlap.clicked_pair(selected, heatmap.x) is None
    # 0.4 is a fifth of the way from 0.25 to 1, and 0.7 three fifths.
    np.testing.assert_allclose(heatmap.z, [[1, 0.2, 0.6], [0.2, 1, np.nan], [0.6, np.nan, 1]])
    numbers = ["1.00"] * 3 + ["0.40"] * 2 + ["0.70"] * 2
    assert sorted(texts(fig)) == sorted(
        [*numbers, *["no data"] * 2, "chance: 0.25; orange: below it"]
    )
    assert fig.layout.yaxis.autorange == "reversed"


@pytest.mark.parametrize(
    ("rows", "text"),
    [
        (
            3,
            "The pruned sets share 40% to 70% over pairs of corpora, least between math and code; "
            "two random sets would share 50%.",
        ),
        (1, "The sets pruned on code and prose share 70%; two random sets would share 50%."),
        (0, "No two corpora have an overlap to compare."),
    ],
)
def test_the_matrix_in_words(corpora, rows, text):
    assert overlap.describe(corpora.iloc[:rows], chance=0.5) == text


def test_rows_of_the_map_are_alpha_and_columns_beta_within_b(variants):
    left, right = traces(variant_map(variants), "heatmap")
    # With 0.2 by chance 0.1 is an eighth below, 0.5 three eighths and 0.9 seven eighths above.
    assert np.asarray(left.z, float)[2].tolist() == pytest.approx([-1 / 8, 3 / 8, 3 / 8])
    assert np.asarray(right.z, float)[0, 1:].tolist() == pytest.approx([3 / 8, 7 / 8])
    assert (left.zmin, left.zmax) == (0, 1)


def test_the_constant_variant_is_never_a_number_and_missing_ones_say_so(variants):
    table = variants.copy()
    table.loc[len(table)] = [1, 0, 0, 1.0, 0.2]
    for given in (variants, table):
        fig = variant_map(given)
        assert np.isnan(np.asarray(traces(fig, "heatmap")[1].z, float)[0, 0])
        assert sum("N/A" in text for text in texts(fig)) == 1
    assert traces(fig, "scatter")[0].fillpattern.shape == "/"
    lacking = variants.iloc[1:].copy()
    lacking.loc[lacking.index[0], "overlap"] = np.nan
    assert sum("no data" in text for text in texts(variant_map(lacking))) == 2


def test_numbers_contrast_with_their_cells(variants):
    notes = variant_map(variants).layout.annotations
    numbers = [(note, note.text.split("<br>")[0]) for note in notes]
    numbers = [(note, text) for note, text in numbers if text in ("0.10", "0.50", "0.90")]
    assert len(numbers) == 17
    for note, text in numbers:
        cell = color_at((float(text) - 0.2) / 0.8, dark=False)
        assert contrast(note.font.color, cell) >= 4.5


def test_the_selected_variant_is_outlined(variants):
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
    ("point", "variant"),
    [
        ([1, 0, 2], (1, 0, 2)),
        ([1, 0, 0], (1, 0, 0)),
        ([2, 0, 0], None),
        ([1, 0, 3], None),
        (["x", 0, 0], None),
        ([1, 0], None),
        ([1, 0, 2, 25], None),
        ("text", None),
        (None, None),
    ],
)
def test_a_click_is_read_and_checked(point, variant):
    assert clicked_variant({"selection": {"points": [{"customdata": point}]}}) == variant
    assert clicked_variant({"selection": {"points": []}}) is None
    assert clicked_variant({"selection": {"points": [{}]}}) is None


def test_the_map_in_words(variants):
    assert overlap_map.describe(variants, 96) == (
        "Of 17 variants, MSAN (1, 0, 2) depends least on the calibration corpus (overlap 0.90) "
        "and (0, 2, 0) most (0.10); two random sets share 0.20."
    )
    assert "No overlap" in overlap_map.describe(variants.iloc[:0], 96)


def test_variants_within_two_experts_are_too_near_to_tell(variants):
    # Of 96 experts 0.77 and 0.75 are 74 and 72: two apart. Of 960 they are twenty apart.
    near = variants.replace({"overlap": {0.9: 74 / 96, 0.5: 72 / 96}})
    said = "(overlap 0.77, about equal to Frequency (0, 0, 0) and 14 more)"
    assert said in overlap_map.describe(near, 96)
    assert "about equal" not in overlap_map.describe(near, 960)
    rows = [("b", 0, 72 / 96), ("b", 1, 74 / 96), ("beta", 0, 0.5), ("beta", 2, 0.7)]
    table = pd.DataFrame(rows, columns=["component", "value", "overlap"])
    assert effects.describe(table, 96) == (
        "Most overlap between corpora with b at any value (too close to call), beta = 2 "
        "(+0.20 over the least)."
    )


def test_overlap_at_chance_is_dark_however_large_it_is():
    # 0.73 where three quarters go is under chance; 0.40 where a quarter goes is a fifth above it.
    rows = [(0.40, 0.25), (0.73, 0.75)]
    table = pd.DataFrame(rows, columns=["overlap", "chance"]).assign(b=1, alpha=1, beta=1)
    quarter, most = (traces(variant_map(table[row : row + 1]), "heatmap")[1] for row in (0, 1))
    assert quarter.z[1][1] == pytest.approx((0.40 - 0.25) / 0.75)
    assert most.z[1][1] == pytest.approx((0.73 - 0.75) / 0.25)


def test_a_range_of_variants_does_not_look_like_an_interval():
    table = pd.DataFrame({"component": ["b", "b"], "value": [0, 1], "overlap": [0.5, 0.6]})
    fig = effects.effects_figure(table.assign(lowest=0.4, highest=0.7), chance=0.2)
    band, marks = fig.data
    assert marks.error_y.array is None
    assert list(band.y) == [0.4, 0.7, None] * 2
    assert fig.layout.shapes[0].y0 == 0.2


def test_a_panel_has_rank_one_left_the_first_layer_on_top_and_the_cut_of_each_row(strata):
    fig = strata_figure(strata)
    first, second = traces(fig, "heatmap")
    assert (first.xaxis, second.xaxis) == ("x", "x3")
    for cells in (first, second):
        assert list(cells.x) == [1, 2, 3, 4, 5]
        np.testing.assert_allclose(cells.z, [[1, 0.75, 0.5, 0.25, 0], [1, 0.5, 0, np.nan, np.nan]])
    # Layer, expert and score of the first cell of layer 7: AIMER's order begins with expert 0.
    marks = [
        trace for trace in traces(fig, "scatter") if trace.mode == "markers" and not trace.name
    ]
    first_of_row_7 = [
        data.tolist()
        for trace in marks
        for x, y, data in zip(trace.x, trace.y, trace.customdata, strict=True)
        if (x, y) == (1, 1)
    ]
    assert first_of_row_7 == [[7, 0, -3], [7, 2, 3]]
    assert [trace.xaxis for trace in marks] == ["x", "x3"]
    assert list(fig.layout.yaxis.range) == [1.5, -0.5]
    assert list(fig.layout.yaxis.ticktext) == ["3", "7"]
    halo, line = (t for t in traces(fig, "scatter") if t.xaxis == "x" and t.mode == "lines")
    assert (list(line.x), list(line.y)) == ([3.5, 3.5, 2.5, 2.5], [-0.5, 0.5, 0.5, 1.5])
    assert halo.line.width > line.line.width
    assert texts(fig) == ["<b>AIMER</b>", "<b>Magnitude</b>"]


def test_colours_compare_what_the_scale_says(strata):
    def ranges(table, scale):
        return [
            (trace.zmin, trace.zmax) for trace in traces(strata_figure(table, scale), "heatmap")
        ]

    assert ranges(strata, "rescaled") == [(0, 1), (0, 1)]
    relative = strata.assign(value=np.where(strata["panel"] == "AIMER", 0.01, 0.3) * strata["rank"])
    # 0.3 times the last of five ranks is the largest of both panels.
    assert ranges(relative, "relative") == [(0, 1.2), (0, 1.2)]
    raw = strata.assign(value=strata["score"])
    assert ranges(raw, "raw") == [(-5, -1), (1, 5)]
    # The first to keep has the same end of the colours, whichever score is kept.
    risen = raw.assign(value=-raw["value"])
    for table, reversed_ in ((raw, [True, False]), (risen, [False, True])):
        maps = traces(strata_figure(table, "raw"), "heatmap")
        assert [map_.reversescale for map_ in maps] == reversed_


def test_spread_and_gap_stand_beside_each_row_and_those_of_random_weights(strata):
    beside = {
        trace.name: trace
        for trace in traces(strata_figure(strata), "scatter")
        if trace.xaxis == "x4" and trace.name
    }
    assert list(beside["spread"].x) == [0.2, 0.4]
    assert list(beside["spread, random weights"].x) == [0.02, 0.02]
    # Nothing is at the end of the axis: the least number that it shows.
    low = 10 ** strata_figure(strata).layout.xaxis4.range[0]
    assert list(beside["gap at the cut"].x) == pytest.approx([low, 0.004])
    assert beside["gap at the cut"].text[0] == "layer 3, gap at the cut: 0%"
    assert beside["spread"].marker.symbol != beside["gap at the cut"].marker.symbol
    both = [getattr(strata_figure(strata).layout, f"xaxis{n}").range for n in (2, 4)]
    assert both[0] == both[1]
    one = strata_figure(strata, panels=["Magnitude"])
    assert one.layout.xaxis2.range == both[0]
    assert one.layout.showlegend is False
    # Criteria of a corpus have no random weights.
    none = strata.assign(random_spread=np.nan, random_gap=np.nan)
    assert not [t for t in strata_figure(none, dark=True).data if "random" in (t.name or "")]


def strata_figure(table, scale="rescaled", **more):
    return stratification_figure(table, scale=scale, **more)


def test_the_verdict_compares_the_median_spread_with_that_of_random_weights(strata):
    # 1.1% is 1.1 times 1%, and 30% is 15 times 2%.
    assert describe_strata(strata) == (
        "AIMER separates experts by 1.1%, random weights by 1%: here it hardly knows. "
        "Magnitude separates experts by 30%, random weights by 2%: clearly, 15 times chance."
    )
    twice = strata.assign(spread=2 * strata["random_spread"])
    assert "2%, random weights by 1%: weakly, 2 times chance" in describe_strata(twice)
    unknown = strata.assign(random_spread=np.nan)
    assert describe_strata(unknown).startswith("AIMER separates experts by 1.1%. Magnitude")
    flat = strata.assign(spread=0.0, gap=0.0, value=0.0, score=4.0)
    assert describe_strata(flat).startswith("AIMER gives every expert the same score. Magnitude")
    for scale in ("rescaled", "relative", "raw"):
        assert strata_figure(flat, scale).data


def test_without_marks_to_click_the_cells_are_read_themselves(strata, monkeypatch):
    monkeypatch.setattr(app_traces, "MOST_CLICKED", len(strata) - 1)
    first, second = traces(strata_figure(strata), "heatmap")
    # Layer, expert and score of the first cell of layer 7: AIMER's order begins with expert 0.
    assert first.customdata[1][0].tolist() == [7, 0, -3]
    assert second.customdata[1][0].tolist() == [7, 2, 3]
    assert not [t for t in traces(strata_figure(strata), "scatter") if t.marker.opacity == 0]


def test_only_cells_carry_an_expert_and_no_click_dims_the_measures(strata):
    for trace in traces(strata_figure(strata), "scatter"):
        if trace.marker.opacity == 0:
            assert trace.hovertemplate.startswith("layer %{customdata[0]}, expert")
        elif trace.mode != "lines":
            assert trace.customdata is None
            assert trace.unselected.marker.opacity == 1


def test_nothing_pruned_draws_no_cut(strata):
    uncut = strata.assign(kept=True, gap=np.nan, random_gap=np.nan)
    lines = [
        t for t in traces(strata_figure(uncut), "scatter") if (t.xaxis, t.mode) == ("x", "lines")
    ]
    assert lines == []


COUNTS = {"a": 4, "b": 2}
PATH_COLUMNS = ["corpus", "layer", "expert", "num_samples", "rank"]


@pytest.fixture
def followed():
    rows = [
        *[("a", 2, 0, 4, 0), ("a", 2, 1, 0, 3)],
        *[("a", 5, 0, 1, 2), ("a", 5, 1, 4, 1), ("a", 5, 2, 0, 4)],
        *[("b", 2, 0, 0, 3), ("b", 2, 1, 1, 1)],
        *[("b", 5, 0, 0, 4), ("b", 5, 1, 2, 0), ("b", 5, 2, 1, 2)],
    ]
    return pd.DataFrame(rows, columns=PATH_COLUMNS)


def test_cells_of_paths_hold_shares_and_their_hover(followed):
    fig = paths.path_frequency(followed, COUNTS, dark=True)
    first, second = fig.data
    # Layer 2 has two experts; who is on no path is empty too.
    nan = np.nan
    assert np.array_equal(first.z, [[1, nan, nan], [0.25, 1, nan]], equal_nan=True)
    assert np.array_equal(second.z, [[nan, 0.5, nan], [nan, 1, 0.5]], equal_nan=True)
    assert (first.zmin, first.zmax) == (second.zmin, second.zmax) == (0, 1)
    # Samples, and the rank counted from 1.
    assert first.customdata[1].tolist() == [[1, 3], [4, 2], [0, 5]]
    assert list(fig.layout.yaxis.ticktext) == ["2", "5"]
    assert texts(fig) == ["a: 4 samples", "b: 2 samples"]
    assert paths.describe(followed, COUNTS) == (
        "Of 5 experts, paths pass through 3 on a, 3 on b; 1 on every corpus and 0 on none."
    )
    said = "Of 5 experts, paths pass through 3 on a."
    assert paths.describe(followed.iloc[:5], {"a": 4}) == said


def test_the_height_of_the_paths_is_bounded():
    table = pd.DataFrame([("a", n, 0, 1, n) for n in range(200)], columns=PATH_COLUMNS)
    fig = paths.path_frequency(table, {"a": 1})
    assert fig.layout.height < 600
    assert len(fig.layout.yaxis.tickvals) < 30


def test_tokens_have_a_panel_per_corpus_with_a_line_per_criterion_and_chance():
    rows = [
        (corpus, criterion, tokens, share, 0.5)
        for corpus, shift in (("code", 0.0), ("math", 0.1))
        for criterion, least in (("REAP", 0.6), ("MAN", 0.8))
        for tokens, share in ((1000, least + shift), (4000, 1.0))
    ]
    columns = ["corpus", "criterion", "tokens", "overlap", "chance"]
    fig = parts_curve(pd.DataFrame(rows, columns=columns), dark=True)
    assert texts(fig) == ["code", "math"]
    assert [trace.name for trace in fig.data] == ["chance", "REAP", "MAN"] * 2
    reap = fig.data[4]
    assert (list(reap.x), list(reap.y)) == (["1,000", "4,000"], [0.7, 1.0])
    assert reap.xaxis == "x2"
    # Each criterion is in the legend once, and looks the same in every panel.
    assert sum(trace.showlegend is not False for trace in fig.data) == 3
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


def test_damage_has_a_point_per_expert_and_zeros_are_counted_not_drawn(damages):
    fig = damage_proxy.damage_proxy(damages, proxy="EAN")
    assert [trace.name for trace in fig.data] == [
        "both keep: 1",
        "only the proxy prunes: 0",
        "only the damage prunes: 1",
        "both prune: 2",
    ]
    assert list(fig.data[3].x) == [5.0]
    assert fig.layout.xaxis.title.text == "saliency by EAN (not drawn: 1 expert at 0)"
    assert fig.layout.xaxis.type == fig.layout.yaxis.type == "log"
    assert len({trace.marker.symbol for trace in fig.data}) == 4
    assert damage_proxy.describe(damages, proxy="EAN") == (
        "EAN and the exact damage decide alike on 3 of 4 experts (75%)."
    )
    # Zeros only: nothing is drawn, and the legend still counts.
    none = damage_proxy.damage_proxy(damages.assign(damage=0.0), proxy="EAN").data
    assert sum(len(trace.x) for trace in none) == 0
    assert [trace.name[-1] for trace in none] == ["1", "0", "1", "2"]


def test_a_pinned_expert_is_marked_wherever_experts_are_drawn(damages, strata, followed):
    ring = damage_proxy.damage_proxy(damages, proxy="EAN", marked=(0, 2)).data[-1]
    assert (list(ring.x), list(ring.y)) == ([7.0], [0.1])
    assert ring.name == "pinned: layer 0, expert 2"
    # One without damage has no place there.
    assert not len(damage_proxy.damage_proxy(damages, proxy="EAN", marked=(0, 3)).data[-1].x)
    # AIMER ranks expert 0 of layer 7 first, Magnitude expert 2; rank 1 lies around x = 1.
    frames = strata_figure(strata, marked=(7, 2)).layout.shapes[1::2]
    assert [(frame.x0, frame.y0, frame.xref) for frame in frames] == [
        (1.5, 0.5, "x"),
        (0.5, 0.5, "x3"),
    ]
    frames = paths.path_frequency(followed, COUNTS, marked=(5, 2)).layout.shapes[1::2]
    assert [(frame.x0, frame.y0, frame.yref) for frame in frames] == [
        (1.5, 0.5, "y"),
        (1.5, 0.5, "y2"),
    ]
    assert not paths.path_frequency(followed, COUNTS, marked=(9, 0)).layout.shapes
