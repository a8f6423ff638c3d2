"""A measure against sparsity: panels, lines, bands, levels, words."""

import pandas as pd
import pytest

from app.charts.evaluation_curves import AXES, curves_figure, describe


@pytest.fixture
def sweep():
    rows = [
        (corpus, series, removed, int(1000 * (1 - removed)), mean, mean - 0.1, mean + 0.1)
        for corpus, best in (("code", 0.0), ("math", 0.2))
        for series, removed, mean in (
            ("", 0.0, 1.0),
            ("reap", 0.5, 0.7 - best),
            ("reap", 0.25, 0.9 - best),
            ("<b>", 0.5, 0.6),
        )
    ]
    columns = ["corpus", "series", "removed", "bytes", "mean", "low", "high"]
    return pd.DataFrame(rows, columns=columns)


def lines(fig):
    return [trace for trace in fig.data if trace.mode == "lines+markers"]


def test_one_line_a_series_and_panel_from_the_unpruned_model_on(sweep):
    fig = curves_figure(sweep, label="ESAP")
    assert [list(line.x) for line in lines(fig)] == [[0, 0.25, 0.5], [0, 0.5]] * 2
    assert list(lines(fig)[0].y) == pytest.approx([1, 0.9, 0.7])
    assert list(lines(fig)[2].y) == pytest.approx([1, 0.7, 0.5])
    assert [line.showlegend for line in lines(fig)] == [True, True, False, False]
    assert len({line.line.dash for line in lines(fig)[:2]}) == 2
    assert fig.layout.yaxis.title.text == "ESAP"


def test_bands_are_the_intervals_and_absent_where_there_is_none(sweep):
    fig = curves_figure(sweep, label="ESAP")
    band = fig.data[0]
    assert list(band.x) == [0, 0.25, 0.5, 0.5, 0.25, 0]
    assert list(band.y) == pytest.approx([1.1, 1.0, 0.8, 0.6, 0.8, 0.9])
    single = curves_figure(sweep.assign(low=None, high=None), label="ESAP")
    assert list(single.data[0].x) == []


def test_the_unpruned_model_is_a_level_in_each_panel(sweep):
    shapes = curves_figure(sweep, label="ESAP").layout.shapes
    assert [shape.y0 for shape in shapes] == [1, 1]


def test_the_axis_is_what_was_asked_for(sweep):
    fig = curves_figure(sweep, label="ESAP", against="removed", dark=True)
    assert list(lines(fig)[0].x) == sweep.sort_values("removed").loc[[0, 2, 1], "removed"].tolist()
    assert fig.layout.xaxis.title.text == AXES["removed"][1]


@pytest.mark.parametrize(("num_bytes", "unit"), [(1024**2, "MiB"), (1024**3, "GiB")])
def test_bytes_are_drawn_in_the_unit_of_the_other_pages(sweep, num_bytes, unit):
    share = 1 - sweep["removed"]
    fig = curves_figure(
        sweep.assign(bytes=4 * num_bytes * share), label="ESAP", against="bytes", dark=True
    )
    assert list(lines(fig)[0].x) == pytest.approx([4, 3, 2])  # none, a quarter, half removed
    assert fig.layout.xaxis.title.text == f"weights, {unit}"


def test_no_two_of_many_series_look_alike(sweep):
    half = sweep[sweep["removed"] == 0.5].head(1)
    many = [half.assign(series=f"candidate {number}") for number in range(30)]
    drawn = lines(curves_figure(pd.concat([sweep[sweep["series"] == ""], *many]), label="ESAP"))
    looks = {(line.line.color, line.line.dash, line.marker.symbol) for line in drawn}
    assert len(looks) == len({line.name for line in drawn}) == 30


def test_lines_that_are_not_lit_are_grey_and_one_trace_with_gaps_between_them(sweep):
    fig = curves_figure(sweep, label="ESAP", lit=["<b>"])
    grey = [trace for trace in fig.data if trace.mode == "lines"]
    gap = float("nan")
    assert [list(line.y) for line in grey] == [
        pytest.approx([1, 0.9, 0.7, gap], nan_ok=True),
        pytest.approx([1, 0.7, 0.5, gap], nan_ok=True),
    ]
    assert [(line.name, line.showlegend) for line in grey] == [
        ("1 other", True),
        ("1 other", False),
    ]
    # The pointer reads the name beside the numbers.
    assert grey[0].text[:3] == ("reap",) * 3
    assert list(grey[0].customdata[2]) == pytest.approx([0.6, 0.8, 0.5])
    assert "%{text}" in grey[0].hovertemplate
    both = curves_figure(sweep, label="ESAP", lit=[]).data[0]
    assert list(both.x) == pytest.approx([0, 0.25, 0.5, gap, 0, 0.5, gap], nan_ok=True)
    assert both.text[4] == "&lt;b&gt;"
    assert both.name == "2 others"
    # Lines that are lit have the first colours, whatever else there is.
    assert lines(fig)[0].line.color == lines(curves_figure(sweep, label="ESAP"))[0].line.color
    assert len(lines(fig)) == 2


def test_names_are_shown_as_written(sweep):
    assert lines(curves_figure(sweep, label="ESAP"))[1].name == "&lt;b&gt;"


def test_words_name_the_best_and_the_worst(sweep):
    assert describe(sweep, label="ESAP", higher_is_better=True) == (
        "ESAP. On code, 50% removed: best reap 0.7, worst <b> 0.6. "
        "On math, 50% removed: best <b> 0.6, worst reap 0.5."
    )
    assert "best <b> 0.6, worst reap 0.7" in describe(sweep, label="KL", higher_is_better=False)
    empty = sweep[sweep["series"] == ""]
    assert "No pruned model" in describe(empty, label="ESAP", higher_is_better=True)
    assert lines(curves_figure(empty, label="ESAP")) == []
