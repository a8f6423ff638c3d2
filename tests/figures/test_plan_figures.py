"""Figures of a plan: sizes, schedules side by side, a search."""

import pandas as pd
import pytest

from app.charts import schedules as schedules_chart
from app.charts import sizes as sizes_chart
from app.charts.schedules import schedules_figure
from app.charts.search import (
    describe_bars,
    describe_progress,
    schedule_bars,
    search_progress,
)
from app.charts.sizes import size_text, sizes_figure
from pruning.search.store import Entry, SearchResult, progress_of


@pytest.mark.parametrize(
    ("num_bytes", "text"),
    [
        (0, "0.00 MiB"),
        (5.72 * 1024**2, "5.72 MiB"),
        (1024**3 - 1, "1024 MiB"),
        (1024**3, "1.00 GiB"),
        (29.93 * 1024**3, "29.9 GiB"),
        (512 * 1024**3, "512 GiB"),
    ],
)
def test_sizes_have_three_digits_and_a_unit(num_bytes, text):
    assert size_text(num_bytes) == text


def test_parts_are_stacked_in_table_order_and_totalled(sizes):
    fig = sizes_figure(sizes)
    assert [trace.name for trace in fig.data] == ["routed experts", "attention"]
    assert list(fig.data[0].x) == [50, 25]
    assert list(fig.data[0].y) == ["before", "after"]
    assert fig.layout.barmode == "stack"
    totals = [annotation.text for annotation in fig.layout.annotations]
    assert totals == ["<b>54.0 GiB</b>", "<b>29.0 GiB</b>"]
    assert fig.layout.xaxis.title.text == "weights, GiB"


def test_description_names_the_part_that_gives_most(sizes):
    assert sizes_chart.describe(sizes) == (
        "The weights shrink from 54.0 GiB to 29.0 GiB (-46%), mostly in routed experts."
    )
    assert sizes_chart.describe(sizes.assign(after=sizes["before"])) == (
        "The weights take 54.0 GiB, as large as the original."
    )
    grown = sizes_chart.describe(sizes.assign(after=sizes["before"] * 2))
    assert grown == "The weights take 108 GiB, larger than the original by 54.00 GiB."


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


def test_numbers_stand_in_their_cells_and_the_shown_row_is_marked(schedules):
    fig = schedules_figure(schedules, marked="Late", dark=True)
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
    assert schedules_figure(schedules, marked="By hand").layout.shapes == ()


def test_the_sentence_names_the_schedule_that_differs_most(schedules):
    assert schedules_chart.describe(schedules) == (
        "2 schedules spend one budget; Late differs most between layers, from 5 to 11 experts kept."
    )
    even = schedules[:2].assign(kept=6)
    assert (
        schedules_chart.describe(even)
        == "Every schedule keeps the same number of experts in every layer."
    )


def result(removed=(1, 3), fitness=(0.3, 0.5, 0.4, 0.48)):
    origins = ("uniform", "random", "mutation", "mutation")
    entries = tuple(
        Entry(n, 0 if n < 2 else 1, None if n < 2 else 1, origin, value, 4, removed)
        for n, (origin, value) in enumerate(zip(origins, fitness, strict=True))
    )
    experts = {1: 5, 3: 6}
    return SearchResult(
        header={},
        experts=experts,
        entries=entries,
        generations=((0, 1), (1, 2, 3)),
        best=1,
        is_finished=True,
        cost=dict.fromkeys(("candidates", "layers", "whole_layers", "seconds"), 0),
    )


@pytest.fixture
def history():
    return result().history()


def test_progress_is_best_so_far_and_median_of_members(history):
    # Members of generation 1: 0.5, 0.4 and 0.48.
    expected = pd.DataFrame(
        {"generation": [0, 1], "best": [0.5, 0.5], "median": [0.4, 0.48], "num_new": [2, 2]}
    )
    pd.testing.assert_frame_equal(progress_of(history), expected)


def test_the_figure_holds_every_new_candidate_the_median_and_the_best(history):
    fig = search_progress(history, progress_of(history), measure="<b>esap", dark=True)
    candidates, median, best = fig.data
    assert list(candidates.x) == [0, 0, 1, 1]
    assert list(candidates.y) == [0.3, 0.5, 0.4, 0.48]
    assert list(median.y) == [0.4, 0.48]
    assert list(best.y) == [0.5, 0.5]
    assert fig.layout.yaxis.title.text == "&lt;b&gt;esap"
    assert fig.layout.shapes[0].y0 == 0.3
    assert fig.layout.annotations[0].text == "uniform 0.300"


def test_progress_in_words(history):
    assert describe_progress(history, progress_of(history), measure="esap") == (
        "After generation 1 the best esap is 0.500, the median 0.480; the initial population's "
        "best was 0.500; uniform has 0.300."
    )
    assert describe_progress(history[:0], progress_of(history[:0])) == (
        "No generation is complete yet."
    )


def test_bars_are_what_the_layers_keep_beside_an_even_share():
    # 5 and 6 experts lose 4 together, so an even share keeps 7/11 of each layer.
    table = result().schedule()
    fig = schedule_bars(table)
    bars, even = fig.data
    assert (list(bars.x), list(bars.y)) == (["1", "3"], [4, 3])
    assert list(even.y) == pytest.approx([5 * 7 / 11, 6 * 7 / 11])
    assert describe_bars(table) == (
        "The best schedule keeps 7 of 11 experts: most in layer 1 (4 of 5), least in layer 3 (3)."
    )


def test_small_models_are_shown_in_mib(sizes):
    small = sizes.assign(before=sizes["before"] / 1024, after=sizes["after"] / 1024)
    fig = sizes_figure(small)
    assert fig.layout.xaxis.title.text == "weights, MiB"
    assert list(fig.data[0].x) == [50, 25]


def test_an_empty_model_draws(sizes):
    fig = sizes_figure(sizes.assign(before=0, after=0))
    assert list(fig.layout.xaxis.range) == [0, 1]


def test_generations_are_whole_numbers_and_one_alone_is_no_sliver(history):
    first = history[history["generation"] == 0]
    axis = search_progress(first, progress_of(first)).layout.xaxis
    assert (list(axis.range), axis.dtick) == ([-0.5, 1.5], 1)
    axis = search_progress(history.assign(generation=30), progress_of(history)).layout.xaxis
    assert (list(axis.range), axis.dtick) == ([-0.5, 30.5], None)


def test_without_uniform_nothing_is_marked(history):
    others = history[history["origin"] != "uniform"]
    assert not search_progress(others, progress_of(others)).layout.shapes
