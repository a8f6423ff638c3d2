"""Figures of sensitivity: a line a layer, layers by levels, the predicted frontier."""

import math

import numpy as np
import pandas as pd
import pytest

from app.charts import predicted_frontier
from app.charts.predicted_frontier import frontier_figure
from app.charts.sensitivity import (
    describe,
    sensitivity_lines,
    sensitivity_map,
    sensitivity_table,
)
from pruning.measures.curves import Curve, Curves, Sensitivity
from pruning.planning.frontier import BEST, FRONTIER_COLUMNS, OTHER, SHOWN, UNIFORM

SIZES = {3: 12, 7: 20}
CUT = (3, 10)


@pytest.fixture
def table():
    """Layer 3 of 12, layer 7 of 20 experts, on two corpora whose levels differ."""
    code = Curves(
        (Curve(np.array([0, 6]), np.array([0.0, 0.6])), Curve(np.array([0, 10]), np.zeros(2))), {}
    )
    math_curves = Curves(
        (
            Curve(np.array([0, 3, 6]), np.array([0.0, 0.1, 0.2])),
            Curve(np.array([0, 10]), np.array([0.0, 0.2])),
        ),
        {},
    )
    return sensitivity_table(Sensitivity((code, math_curves), "nll"), SIZES, CUT)


def test_the_table_has_the_mean_over_corpora_at_every_level(table):
    added = table.set_index(["layer", "removed"])["added"]
    assert added.to_dict() == pytest.approx(
        {(3, 0): 0.0, (3, 3): 0.2, (3, 6): 0.4, (7, 0): 0.0, (7, 10): 0.1}
    )
    at_cut = table.groupby("layer")["added_at_cut"].first()
    assert at_cut.to_dict() == pytest.approx({3: 0.2, 7: 0.1})


def test_small_lines_stay_in_their_cells_and_mark_the_cut(table):
    fig = sensitivity_lines(table)
    line = next(trace for trace in fig.data if str(trace.name).startswith("loss increase"))
    marks = next(trace for trace in fig.data if trace.name == "the plan's cut")
    assert [tuple(row) for row in marks.customdata] == [
        pytest.approx((3, 3, 12, 0.2)),
        pytest.approx((7, 10, 20, 0.1)),
    ]
    # A cell is 1 wide; the line of each layer ends in a gap.
    assert [x is None for x in line.x] == [False] * 3 + [True] + [False] * 2 + [True]
    ends = [x for x in line.x if x is not None]
    assert all(place <= x < place + 1 for place, x in zip((0, 0, 0, 1, 1), ends, strict=True))
    assert marks.x[0] == pytest.approx(line.x[1])
    assert marks.y[0] == pytest.approx(line.y[1])


def test_many_layers_stand_in_rows_of_cells(table):
    many = pd.concat([table[table["layer"] == 3].assign(layer=layer) for layer in range(94)])
    fig = sensitivity_lines(many, dark=True)
    labels = next(trace for trace in fig.data if trace.mode == "text")
    assert [str(layer) for layer in range(94)] == list(labels.text)
    assert len({*zip(labels.x, labels.y, strict=True)}) == 94
    assert fig.layout.height < 900


def test_the_map_has_a_row_a_layer_and_no_colour_beyond_its_curve(table):
    fig = sensitivity_map(table)
    cells = fig.data[0]
    assert list(cells.x) == pytest.approx([0.25, 0.5])
    assert np.array(cells.z).tolist() == [pytest.approx([0.2, 0.4]), pytest.approx([0.05, 0.1])]
    assert list(fig.data[-1].x) == [0.25, 0.25, None, 0.5, 0.5, None]


def test_the_sentence_adds_up_the_cuts(table):
    said = describe(table, "code, 8 samples")
    assert "add +0.30 nats per token in all, most of it in layer 3 (+0.20 for 3 of 12)" in said
    assert "half of layer 7 alone costs +0.10, of layer 3 +0.40" in said


@pytest.fixture
def frontier():
    mib = 1 << 20
    rows = [
        (BEST, 0, 10 * mib, 0.0, 0.0, 0.0, math.nan),
        (BEST, 4, 8 * mib, 0.2, 0.1, 0.3, 0.25),
        (BEST, 8, 6 * mib, 1.0, 0.8, 1.2, math.nan),
        (UNIFORM, 0, 10 * mib, 0.0, 0.0, 0.0, math.nan),
        (UNIFORM, 4, 8 * mib, 0.4, 0.3, 0.5, 0.55),
        (UNIFORM, 8, 6 * mib, 1.0, 0.8, 1.2, math.nan),
        (OTHER, 4, 8 * mib, 0.6, 0.5, 0.7, 0.5),
    ]
    return pd.DataFrame(rows, columns=list(FRONTIER_COLUMNS))


def test_the_frontier_says_how_wrong_it_was(frontier):
    said = predicted_frontier.describe(frontier, "code, 8 samples")
    assert "At 8.00 MiB, 4 experts fewer" in said
    assert "adds +0.25 nats per token, uniform adds +0.55" in said
    assert "over 3 measured plans, each left out in turn, predictions are off by 0.10" in said
    unknown = predicted_frontier.describe(frontier.assign(measured=math.nan), "code")
    assert "is predicted to add +0.20 (0.10 to 0.30) nats per token, uniform is pred" in unknown
    assert "no plan of this order was measured" in unknown


def test_what_was_measured_replaces_what_was_predicted(frontier):
    fig = frontier_figure(frontier)
    drawn = {trace.name: trace for trace in fig.data}
    assert list(drawn["best plan"].x) == [10, 8, 6]
    assert list(drawn["best plan"].y) == [0, 0.25, 1]
    assert list(drawn["uniform"].y) == [0, 0.55, 1]
    points = {name: list(t.y) for name, t in drawn.items() if t.mode == "markers"}
    assert list(points.values()) == [[0.25], [0.55], [0.5]]
    assert list(drawn["95% band"].y) == [0, 0.25, 0.8, 1.2, 0.25, 0]
    frontier.loc[len(frontier)] = (SHOWN, 6, 7 << 20, 0.7, 0.6, 0.8, math.nan)
    (star,) = (trace for trace in frontier_figure(frontier).data if "this plan" in trace.name)
    assert (star.name, list(star.x), list(star.y)) == ("this plan, predicted", [7], [0.7])
    said = "This plan is predicted to add +0.70 (0.60 to 0.80)."
    assert said in predicted_frontier.describe(frontier, "code")
