"""Figures of searches: every number of the tables is where it belongs."""

import pandas as pd
import pytest

from app.charts.search import (
    density_schedules,
    describe_bars,
    describe_progress,
    describe_schedules,
    schedule_bars,
    search_progress,
)
from pruning.search.result import Entry, SearchResult, densities_of, progress_of


def result(removed=(1, 3), fitness=(0.3, 0.5, 0.4, None)):
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
    # Members of generation 1: 0.5, 0.4 and one that was given up.
    expected = pd.DataFrame(
        {"generation": [0, 1], "best": [0.5, 0.5], "median": [0.4, 0.45], "num_new": [2, 2]}
    )
    pd.testing.assert_frame_equal(progress_of(history), expected)


@pytest.mark.parametrize("dark", [False, True])
def test_the_figure_holds_every_new_candidate_the_median_and_the_best(history, dark):
    fig = search_progress(history, progress_of(history), measure="<b>esap", dark=dark)
    candidates, median, best = fig.data
    assert list(candidates.x) == [0, 0, 1]
    assert list(candidates.y) == [0.3, 0.5, 0.4]
    assert list(median.y) == [0.4, 0.45]
    assert list(best.y) == [0.5, 0.5]
    assert fig.layout.yaxis.title.text == "&lt;b&gt;esap"
    assert fig.layout.shapes[0].y0 == 0.3
    assert fig.layout.annotations[0].text == "uniform 0.300"


def test_generations_are_whole_numbers_and_one_alone_is_no_sliver(history):
    first = history[history["generation"] == 0]
    axis = search_progress(first, progress_of(first)).layout.xaxis
    assert (list(axis.range), axis.dtick) == ([-0.5, 1.5], 1)
    axis = search_progress(history.assign(generation=30), progress_of(history)).layout.xaxis
    assert (list(axis.range), axis.dtick) == ([-0.5, 30.5], None)


def test_without_uniform_nothing_is_marked(history):
    others = history[history["origin"] != "uniform"]
    assert not search_progress(others, progress_of(others)).layout.shapes


def test_progress_in_words(history):
    assert describe_progress(history, progress_of(history), measure="esap") == (
        "After generation 1 the best esap is 0.500, the median 0.450; the initial population's "
        "best was 0.500; uniform has 0.300."
    )
    assert describe_progress(history[:0], progress_of(history[:0])) == (
        "No generation is complete yet."
    )


def test_schedules_side_by_side_are_shares_kept():
    # 1 of 5 and 3 of 6 removed; 2 of 5 and 0 of 6.
    table = densities_of({"one": result(), "<i>two": result((2, 0))})
    fig = density_schedules(table)
    assert [trace.name for trace in fig.data] == ["one", "&lt;i&gt;two"]
    assert [list(trace.y) for trace in fig.data] == [[0.8, 0.5], [0.6, 1.0]]
    assert [list(trace.x) for trace in fig.data] == [["1", "3"], ["1", "3"]]
    assert fig.data[0].line.dash != fig.data[1].line.dash
    assert describe_schedules(table) == (
        "one keeps most in layer 1 (80%) and least in layer 3 (50%); "
        "<i>two keeps most in layer 3 (100%) and least in layer 1 (60%)."
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


def test_no_search_is_no_line():
    empty = densities_of({"one": result()})[:0]
    assert not density_schedules(empty).data
    assert describe_schedules(empty) == "No search is shown."
