"""Quality against memory: who is on the front, how it is drawn, what is said."""

import pandas as pd
import pytest

from app.charts.names import FULL
from app.charts.pareto import Quality, describe, drawing, pareto_table

MIB = 1024**2


@pytest.fixture
def points():
    """Loss: half of the size costs 1 nat at least; `odd` is larger and worse than the model."""
    rows = [
        (FULL, 0.0, 10 * MIB, 2.0, 1.9, 2.1, True),
        ("good", 0.5, 5 * MIB, 3.0, 2.9, 3.2, False),
        ("bad", 0.5, 5 * MIB, 4.0, float("nan"), float("nan"), False),
        ("<b>", 0.75, 3 * MIB, 5.0, 4.0, 6.0, False),
        ("odd", 0.1, 11 * MIB, 2.5, 2.4, 2.6, False),
        ("of no known size", 0.5, float("nan"), 1.0, 0.9, 1.1, False),
    ]
    return pd.DataFrame(
        rows, columns=["candidate", "removed", "bytes", "value", "low", "high", "is_full"]
    )


LOSS = Quality("Loss on code", "Loss, nats per token", higher_is_better=False)


def test_the_table_is_by_size_and_says_who_is_on_the_front(points):
    table = pareto_table(points, higher_is_better=False)
    assert table["candidate"].tolist() == ["<b>", "good", "bad", FULL, "odd"]
    assert table["on_front"].tolist() == [True, True, False, True, False]
    # Read as an accuracy, the smallest is the best of all and beats the rest.
    upside_down = pareto_table(points, higher_is_better=True)
    assert upside_down.loc[upside_down["on_front"], "candidate"].tolist() == ["<b>"]


def test_the_front_is_steps_and_what_is_beaten_stands_back(points):
    figure = drawing(points, LOSS, "").figure(dark=False)
    steps, beaten, front, full = figure.data
    # hv: what 3 MiB buy is had up to 5 MiB.
    assert steps.line.shape == "hv"
    assert (list(steps.x), list(steps.y)) == ([3, 5, 10], [5, 3, 2])
    assert [name for name, *_ in beaten.customdata] == ["bad", "odd"]
    assert beaten.opacity < front.opacity == 1
    assert list(full.y) == [2]
    # From 3.0 up to 3.2 and down to 2.9; no bar where there is no interval.
    assert list(front.error_y.array) == pytest.approx([1, 0.2])
    assert list(front.error_y.arrayminus) == pytest.approx([1, 0.1])
    assert list(beaten.error_y.array) == pytest.approx([0, 0.1])
    assert "95%" not in beaten.customdata[0][2]
    assert figure.layout.xaxis.title.text == "weights, MiB"
    assert figure.layout.yaxis.title.text == LOSS.axis


def test_names_are_shown_as_written_where_no_candidate_can_lie(points):
    shown = drawing(points, LOSS, "").figure(dark=True).layout.annotations
    assert [note.text for note in shown] == ["&lt;b&gt;", "good"]
    # Below and to the right of a step lies what would beat it.
    assert {(note.xanchor, note.yanchor) for note in shown} == {("left", "top")}


def test_of_two_names_without_room_the_better_candidate_has_its_own(points):
    near = points.iloc[[1]].assign(candidate="nearly as large", bytes=4.9 * MIB, value=3.1)
    chart = drawing(pd.concat([points, near]), LOSS, "")
    table = chart.table
    assert table.loc[table["on_front"], "candidate"].tolist()[1:3] == ["nearly as large", "good"]
    assert [note.text for note in chart.figure(dark=False).layout.annotations] == [
        "&lt;b&gt;",
        "good",
    ]
    assert "nearly as large" in chart.alt


def test_words_name_the_front(points):
    assert drawing(points, LOSS, "").alt == (
        "Loss on code: of 4 pruned candidates 2 are beaten by no other at both size and quality: "
        "<b> (3.00 MiB, 5); good (5.00 MiB, 3); the full model gets 2."
    )
    beaten = points[points["candidate"].isin([FULL, "odd"])]
    table = pareto_table(beaten, higher_is_better=False)
    assert "the full model beats all of 1 pruned candidate" in describe(table, label="Loss")


def test_without_a_pruned_candidate_there_is_no_chart(points):
    assert drawing(points[points["is_full"]], LOSS, "") is None
    assert drawing(points.head(0), LOSS, "") is None
