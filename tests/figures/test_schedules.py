"""All schedules on one budget: one row each, a share and a number in every cell."""

import pandas as pd
import pytest

from app.charts.schedules import describe, schedules_figure


@pytest.fixture
def schedules():
    """Layers 3 and 7 of 12 and 20 experts; sixteen of 32 stay under each schedule."""
    rows = [
        ("Uniform", 3, 6, 6),
        ("Uniform", 7, 10, 10),
        ("Late", 3, 11, 1),
        ("Late", 7, 5, 15),
    ]
    return pd.DataFrame(rows, columns=["schedule", "layer", "kept", "removed"])


def test_cells_hold_the_share_kept_in_the_order_of_the_table(schedules):
    (heat,) = schedules_figure(schedules).data
    assert list(heat.y) == ["Uniform", "Late"]
    assert list(heat.x) == ["3", "7"]
    assert heat.z.tolist() == [[0.5, 0.5], pytest.approx([11 / 12, 0.25])]
    assert (heat.zmin, heat.zmax) == (0, 1)


@pytest.mark.parametrize("dark", [False, True])
def test_numbers_stand_in_their_cells_and_the_shown_row_is_marked(schedules, dark):
    fig = schedules_figure(schedules, shown="Late", dark=dark)
    written = {(note.y, note.x): note.text for note in fig.layout.annotations}
    assert written == {
        ("Uniform", "3"): "6",
        ("Uniform", "7"): "10",
        ("Late", "3"): "11",
        ("Late", "7"): "5",
    }
    (frame,) = fig.layout.shapes
    assert (frame.y0, frame.y1) == (0.5, 1.5)
    assert list(fig.layout.yaxis.ticktext) == ["Uniform", "<b>Late</b>"]
    # Nothing by hand is beside the schedules, so nothing is marked then.
    assert schedules_figure(schedules, shown="By hand").layout.shapes == ()


def test_many_layers_have_no_numbers(schedules):
    many = pd.concat([schedules.assign(layer=schedules["layer"] + 10 * n) for n in range(20)])
    many = many.sort_values(["schedule", "layer"])
    assert schedules_figure(many).layout.annotations == ()


def test_the_sentence_names_the_schedule_that_differs_most(schedules):
    assert describe(schedules) == (
        "2 schedules spend one budget; Late differs most between layers, from 5 to 11 experts kept."
    )
    even = schedules[:2].assign(kept=6)
    assert describe(even) == "Every schedule keeps as many experts in every layer."
