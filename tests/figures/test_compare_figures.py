"""Figures of a comparison: what lies where, and that colour is never the only cue."""

import numpy as np
import pandas as pd
import pytest

from analysis.ranking.compare import FATES
from app.charts import kept_by, layer_agreement, rank_rank
from app.charts import rank_flow as bump
from app.charts.criterion_looks import criterion_look
from app.charts.theme import contrast, paper, series_color

NAMES = ("REAP, code, 50%", "MAN, code, 50%")


@pytest.fixture
def compared():
    """Layer 3 has four experts, layer 7 two."""
    rows = [
        (3, 0, "both", 0, 0),
        (3, 1, "only A", 1, 3),
        (3, 2, "only B", 2, 1),
        (3, 3, "neither", 3, 2),
        (7, 0, "neither", 1, 1),
        (7, 1, "both", 0, 0),
    ]
    return pd.DataFrame(rows, columns=["layer", "expert", "kept_by", "rank_a", "rank_b"])


def test_map_has_a_cell_for_each_expert_and_none_elsewhere(compared):
    cells, *_, both, only_a, only_b, neither = kept_by.kept_by_map(compared, NAMES).data
    assert cells.z.tolist() == [[0, 1, 2, 3], [3, 0, len(FATES), len(FATES)]]
    # Ranks are read as people count: from 1.
    assert cells.customdata[0, 1].tolist() == [2, 4]
    assert len({color for _, color in cells.colorscale}) == 5
    legend = [trace.name for trace in (both, only_a, only_b, neither)]
    assert [name.split(":")[1].strip() for name in legend] == ["2", "1", "1", "2"]
    assert [name.split("  ")[0].split(":")[0] for name in legend] == list(FATES)
    assert kept_by.describe(compared, ("REAP", "MAN")) == (
        "Of 6 experts both recipes keep 2 and prune 2; only A (REAP) keeps 1, only B (MAN) 1."
    )


def test_cells_that_only_one_keeps_bear_a_stroke_of_its_own_slope(compared):
    _, only_a, only_b, *_ = kept_by.kept_by_map(compared, NAMES).data
    for trace, expert, slope in ((only_a, 1, -1), (only_b, 2, 1)):
        x, y = trace.x[:2], trace.y[:2]
        assert x.mean() == pytest.approx(expert)
        assert y.mean() == pytest.approx(0)
        # y points down: a negative slope rises to the right.
        assert np.sign((y[1] - y[0]) / (x[1] - x[0])) == slope
        assert np.isnan(trace.x[2])


@pytest.mark.parametrize("dark", [False, True])
def test_what_one_recipe_keeps_alone_has_the_colour_of_its_criterion(compared, layer, dark):
    colors = {name: criterion_look(name, dark).color for name in ("reap", "man")}
    for names, sides in (
        (("REAP, a, 50%", "MAN, a, 50%"), (colors["reap"], colors["man"])),
        (("REAP, a, 50%", "REAP, b, 50%"), (colors["reap"], series_color(1, dark))),
    ):
        *_, both, only_a, only_b, neither = kept_by.kept_by_map(compared, names, dark=dark).data
        flow = bump.bump(layer, names, dark=dark)
        assert (only_a.marker.color, only_b.marker.color) == sides
        assert tuple(trace(flow, f"only {side}").line.color for side in "AB") == sides
        for color in (both.marker.color, neither.marker.color):
            red, green, blue = (int(color[place : place + 2], 16) for place in (1, 3, 5))
            assert max(red, green, blue) - min(red, green, blue) < 25  # grey
        # The strokes over them are seen.
        assert all(contrast(color, paper(dark)) >= 3 for color in sides)


def test_bins_hold_every_expert_once_and_the_cut_parts_them(compared):
    fig = rank_rank.rank_rank(compared, NAMES)
    counts = np.nan_to_num(fig.data[0].z)
    assert counts.sum() == 6
    # Two bins: both kept at the top left, in rows B and in columns A.
    assert counts.tolist() == [[2, 1], [1, 2]]
    assert sorted({shape.x0 for shape in fig.layout.shapes if shape.x0 == shape.x1}) == [0.5]
    assert fig.layout.yaxis.range == (1, 0)
    texts = {note.text: (note.x, note.y) for note in fig.layout.annotations}
    assert texts == {
        "both: 2": (0.5, 1),
        "only A: 1": (0, 0),
        "only B: 1": (1, 1),
        "neither: 2": (0.5, 0),
    }


def test_a_brushed_region_gives_its_experts(compared):
    targets = rank_rank.rank_rank(compared, NAMES).data[1]
    # Two by two cells, numbered along the rows, which are ranks in B: see the counts above.
    assert sorted(targets.customdata.tolist()) == [0, 1, 2, 3]
    event = {"selection": {"points": [{"customdata": 1}, {"customdata": 2}]}}
    found = rank_rank.brushed_rows(compared, event)
    assert found["kept_by"].tolist() == ["only A", "only B"]
    assert (
        len(rank_rank.brushed_rows(compared, {"selection": {"points": [{"customdata": 0}]}})) == 2
    )
    damaged = {"selection": {"points": [{"customdata": "x"}]}}
    for nothing in (None, {}, {"selection": {"points": []}}, damaged, 5):
        assert rank_rank.brushed_rows(compared, nothing) is None
    # The marker of a cell lies in it.
    place = dict(
        zip(targets.customdata.tolist(), zip(targets.x, targets.y, strict=True), strict=True)
    )
    assert place[2] == (0.25, 0.75)


def test_a_marked_expert_is_framed(compared):
    plain, framed = (kept_by.kept_by_map(compared, NAMES, marked=place) for place in (None, (7, 1)))
    assert not plain.layout.shapes
    # The second row, the second expert.
    ring = framed.layout.shapes[-1]
    assert (ring.x0, ring.x1, ring.y0, ring.y1) == (0.5, 1.5, 0.5, 1.5)
    assert not kept_by.kept_by_map(compared, NAMES, marked=(4, 1)).layout.shapes
    # The second of two in both orders.
    ring = rank_rank.rank_rank(compared, NAMES, marked=(7, 0)).data[-1]
    assert (list(ring.x), list(ring.y)) == ([0.75], [0.75])
    cell = {"customdata": 0}
    alone, with_ring = (
        rank_rank.brushed_rows(compared, {"selection": {"points": points}})
        for points in ([cell], [cell, {"x": 0.75}])
    )
    assert alone is not None
    assert alone.equals(with_ring)


def test_layers():
    table = pd.DataFrame(
        {
            "layer": [3, 7],
            "agreement": [0.5, 1.0],
            "jaccard": [0.3, np.nan],
            "kendall_tau": [-0.4, 1.0],
        }
    )
    fig = layer_agreement.layer_agreement(table)
    assert len({trace.line.dash for trace in fig.data}) == 3
    assert len({trace.marker.symbol for trace in fig.data}) == 3
    assert list(fig.data[0].x) == ["3", "7"]
    # A negative tau stays on the chart.
    assert fig.layout.yaxis.range[0] < -0.4
    assert layer_agreement.describe(table) == (
        "Equal decisions range from 50% in layer 3 to 100% in layer 7."
    )


@pytest.fixture
def layer():
    """Two of four are kept: expert 3 falls out, expert 1 comes in."""
    rows = [
        (5, 0, "both", 0, 0),
        (5, 1, "only B", 3, 1),
        (5, 2, "neither", 2, 3),
        (5, 3, "only A", 1, 2),
    ]
    return pd.DataFrame(rows, columns=["layer", "expert", "kept_by", "rank_a", "rank_b"])


def trace(fig, name):
    (found,) = (each for each in fig.data if (each.name or "").startswith(name))
    return found


def test_each_expert_is_a_line_from_its_rank_in_a_to_that_in_b(layer):
    fig = bump.bump(layer, NAMES)
    ends = {
        name: trace(fig, name).y[:2].tolist() for name in ("both", "neither", "only A", "only B")
    }
    assert ends == {"both": [1, 1], "neither": [3, 4], "only A": [2, 3], "only B": [4, 2]}
    assert all(np.isnan(trace(fig, name).y[2]) for name in ends)
    # Only what crosses the cut has a colour and names its expert; dashes tell the two apart.
    loud = [trace(fig, name) for name in ("only A", "only B")]
    assert loud[0].text[:2] == ("3", "3")
    assert loud[0].line.color != loud[1].line.color
    assert loud[0].line.dash != loud[1].line.dash
    assert trace(fig, "both").line.color == trace(fig, "neither").line.color
    assert list(trace(bump.bump(layer, NAMES, marked=2), "expert 2").y) == [3, 4]
    assert len(bump.bump(layer, NAMES, marked=9).data) == len(fig.data)


def test_the_cut_lies_below_the_last_kept(layer):
    cut = bump.bump(layer, NAMES).data[-1]
    assert cut.y == (2.5, 2.5, 2.5, 2.5)
    # A keeps three, B two.
    layer.loc[2, "kept_by"] = "only A"
    assert bump.bump(layer, NAMES).data[-1].y == (3.5, 3.5, 2.5, 2.5)


def test_figures_of_a_large_model_are_binned_and_small():
    generator = np.random.default_rng(0)
    ranks = np.stack([generator.permutation(128) for _ in range(96)]).reshape(2, -1)
    table = pd.DataFrame(
        {
            "layer": np.repeat(np.arange(48), 128),
            "expert": np.tile(np.arange(128), 48),
            "kept_by": ["both", "only A", "only B", "neither"] * 32 * 48,
            "rank_a": ranks[0],
            "rank_b": ranks[1],
        }
    )
    fig = rank_rank.rank_rank(table, NAMES)
    assert fig.data[0].z.shape == (32, 32)
    assert len(fig.to_json()) < 28 * 1024
    assert len(kept_by.kept_by_map(table.assign(kept_by="both"), NAMES).to_json()) < 64 * 1024
    assert len(bump.bump(table[table["layer"] == 0], NAMES).to_json()) < 24 * 1024
