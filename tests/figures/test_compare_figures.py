"""Figures of a comparison: what lies where, and that colour is never the only cue."""

import numpy as np
import pandas as pd
import pytest

from analysis.ranking.compare import FATES
from app.charts import kept_by, layer_agreement
from app.charts.theme import contrast, paper

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
    names = [name.split("  ")[0].split(":")[0] for name in legend]
    assert names == ["both", "only A, REAP", "only B, MAN", "neither"]
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
def test_what_both_or_neither_keep_is_grey_and_strokes_are_seen_over_the_sides(compared, dark):
    *_, both, only_a, only_b, neither = kept_by.kept_by_map(compared, NAMES, dark=dark).data
    for color in (both.marker.color, neither.marker.color):
        red, green, blue = (int(color[place : place + 2], 16) for place in (1, 3, 5))
        assert max(red, green, blue) - min(red, green, blue) < 25
    sides = (only_a.marker.color, only_b.marker.color)
    assert all(contrast(color, paper(dark)) >= 3 for color in sides)


def test_a_marked_expert_is_framed(compared):
    plain, framed = (kept_by.kept_by_map(compared, NAMES, marked=place) for place in (None, (7, 1)))
    assert not plain.layout.shapes
    # The second row, the second expert.
    ring = framed.layout.shapes[-1]
    assert (ring.x0, ring.x1, ring.y0, ring.y1) == (0.5, 1.5, 0.5, 1.5)
    assert not kept_by.kept_by_map(compared, NAMES, marked=(4, 1)).layout.shapes


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


def test_the_map_of_a_large_model_is_small_and_without_strokes_where_they_would_blur():
    strokes = []
    for layers in (48, 58):
        ranks = np.tile(np.arange(128), layers)
        table = pd.DataFrame(
            {
                "layer": np.repeat(np.arange(layers), 128),
                "expert": ranks,
                "kept_by": "both",
                "rank_a": ranks,
                "rank_b": ranks,
            }
        )
        assert len(kept_by.kept_by_map(table, NAMES).to_json()) < 64 * 1024
        table.loc[7, "kept_by"] = "only A"
        drawn = kept_by.kept_by_map(table, NAMES).data
        strokes.append(any(trace.mode == "lines" for trace in drawn[1:]))
        assert any("\u2571" in (trace.name or "") for trace in drawn) == strokes[-1]
    assert strokes == [True, False]
