"""Figures of results: sweeps, quality against memory, benchmarks."""

import ast
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from app.charts import capability, evaluation_curves, pareto, text_lens, winner_map
from app.charts.criterion_looks import looks
from app.charts.evaluation_curves import curves_figure
from app.charts.evaluations import intervals_of
from app.charts.names import FULL
from app.charts.pareto import Quality, pareto_drawing, pareto_table
from app.charts.published import TABLES, leaderboard, published_settings, winners_of
from app.charts.theme import contrast, ink, paper, series_color, text_on

ROOT = Path(__file__).parents[2]


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


def test_a_repaired_series_has_the_colour_of_its_criterion_and_another_dash(sweep):
    names = {"reap": "REAP, on code", "<b>": "REAP, on code + repair"}
    fig = curves_figure(sweep.assign(series=sweep["series"].replace(names)), label="ESAP")
    plain, repaired = lines(fig)[:2]
    assert [plain.name, repaired.name] == ["REAP, on code", "REAP, on code + repair"]
    assert plain.line.color == repaired.line.color
    assert plain.line.dash != repaired.line.dash
    assert plain.marker.symbol != repaired.marker.symbol
    plain, repaired = looks(["AIMER", "AIMER + repair"], dark=False).values()
    assert plain.color == repaired.color
    assert plain.dash != repaired.dash


def test_bands_are_the_intervals_and_absent_where_there_is_none(sweep):
    fig = curves_figure(sweep, label="ESAP")
    band = fig.data[0]
    assert list(band.x) == [0, 0.25, 0.5, 0.5, 0.25, 0]
    assert list(band.y) == pytest.approx([1.1, 1.0, 0.8, 0.6, 0.8, 0.9])
    single = curves_figure(sweep.assign(low=None, high=None), label="ESAP")
    assert list(single.data[0].x) == []


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
    # A line has its colour, whatever else is lit.
    assert lines(fig)[0].line.color == lines(curves_figure(sweep, label="ESAP"))[1].line.color
    assert len(lines(fig)) == 2


def test_words_name_the_best_and_the_worst(sweep):
    assert evaluation_curves.describe(sweep, label="ESAP", higher_is_better=True) == (
        "ESAP. On code, 50% sparsity: best reap 0.7, worst <b> 0.6. "
        "On math, 50% sparsity: best <b> 0.6, worst reap 0.5."
    )
    assert "best <b> 0.6, worst reap 0.7" in evaluation_curves.describe(
        sweep, label="KL", higher_is_better=False
    )
    empty = sweep[sweep["series"] == ""]
    assert "No pruned model" in evaluation_curves.describe(
        empty, label="ESAP", higher_is_better=True
    )
    assert lines(curves_figure(empty, label="ESAP")) == []


@pytest.mark.parametrize(
    ("documents", "plans", "words"),
    [
        ((64, 64), ("p", "q"), "95% by 64 documents"),
        (
            (64, 5),
            ("p", "q"),
            "95% by 5 documents, rough: they are few (the corpus with the fewest)",
        ),
        ((12, 12), ("p", ""), "95% by 12 documents; of Random over its draws"),
        ((None, None), ("p", "q"), "95% by windows of one text"),
    ],
)
def test_a_chart_says_what_its_bars_are(documents, plans, words):
    rows = pd.DataFrame({"way": "", "criterion": ["reap", "random"], "plan": plans})
    rows = rows.assign(num_samples=64, num_documents=pd.array(documents, dtype="Int64"))
    other = rows.assign(way="8 samples", num_documents=pd.array([1, 1], dtype="Int64"))
    assert intervals_of(pd.concat([rows, other])) == words


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
    figure = pareto_drawing(points, LOSS, "").figure(dark=False)
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
    shown = pareto_drawing(points, LOSS, "").figure(dark=True).layout.annotations
    assert [note.text for note in shown] == ["&lt;b&gt;", "good"]
    # Below and to the right of a step lies what would beat it.
    assert {(note.xanchor, note.yanchor) for note in shown} == {("left", "top")}


def test_of_two_names_without_room_the_better_candidate_has_its_own(points):
    near = points.iloc[[1]].assign(candidate="nearly as large", bytes=4.9 * MIB, value=3.1)
    chart = pareto_drawing(pd.concat([points, near]), LOSS, "")
    table = chart.table
    assert table.loc[table["on_front"], "candidate"].tolist()[1:3] == ["nearly as large", "good"]
    assert [note.text for note in chart.figure(dark=False).layout.annotations] == [
        "&lt;b&gt;",
        "good",
    ]
    assert "nearly as large" in chart.alt


def test_words_name_the_front(points):
    assert pareto_drawing(points, LOSS, "").alt == (
        "Loss on code: of 4 pruned candidates 2 are beaten by no other at both size and quality: "
        "<b> (3.00 MiB, 5); good (5.00 MiB, 3); the original model gets 2."
    )
    beaten = points[points["candidate"].isin([FULL, "odd"])]
    table = pareto_table(beaten, higher_is_better=False)
    said = pareto.describe(table, label="Loss")
    assert "the original model beats all of 1 pruned candidate" in said


def test_without_a_pruned_candidate_there_is_no_chart(points):
    assert pareto_drawing(points[points["is_full"]], LOSS, "") is None
    assert pareto_drawing(points.head(0), LOSS, "") is None


@pytest.fixture
def won():
    rows = [
        ("m 25%", "x", "REAP", 0.5, 0.1, 1, 4),
        ("m 25%", "y", "MAN", 0.3, 0.0, 3, 4),
        ("m 50%", "x", "", 0.0, 0.0, 0, 2),
        ("m 50%", "y", "REAP", 0.2, 0.05, 1, 2),
    ]
    columns = ["setting", "benchmark", "winner", "score", "margin", "tied", "candidates"]
    return pd.DataFrame(rows, columns=columns)


def test_each_cell_has_its_winner(won):
    fig = winner_map.winner_map(won, dark=True)
    (cells,) = fig.data
    # 0 = nobody, then the winners in order of appearance.
    assert cells.z.tolist() == [[1, 2], [0, 1]]
    words = {(annotation.y, annotation.x): annotation.text for annotation in fig.layout.annotations}
    assert words == {
        ("m 25%<br>4 candidates", "x"): "REAP",
        ("m 25%<br>4 candidates", "y"): "MAN<br>+2",
        ("m 50%<br>2 candidates", "x"): "all 0",
        ("m 50%<br>2 candidates", "y"): "REAP",
    }
    assert list(cells.y) == ["m 25%<br>4 candidates", "m 50%<br>2 candidates"]
    assert cells.customdata[0][0] == "REAP: 0.500, 0.100 before the next"
    alone = won.iloc[[0]].assign(winner="", score=0.5, margin=0.0, tied=0, candidates=1)
    fig = winner_map.winner_map(pd.concat([alone, won.iloc[[1]]]))
    assert [annotation.text for annotation in fig.layout.annotations] == [
        "1 candidate",
        "MAN<br>+2",
    ]
    assert fig.data[0].z.tolist() == [[0, 1]]


def test_the_sentence_counts_the_cells(won):
    assert winner_map.describe(won) == (
        "Of 3 cells with a winner: REAP 2, MAN 1; 1 of them shared (the first is named)."
    )
    assert winner_map.describe(won[won["winner"] == ""]) == "No benchmark has a winner."


@pytest.fixture
def scores():
    return pd.DataFrame(
        {"x": [0.8, 0.4, 0.2], "y": [0.6, 0.5, 0.3]}, index=["Original model", "REAP", "<b>MAN</b>"]
    )


def test_the_profile_has_dots_at_the_scores(scores):
    fig = capability.capability_dots(scores, dark=True)
    found = {trace.name: list(trace.x) for trace in fig.data}
    assert found["REAP"] == [0.4, 0.5]
    assert found["Original model"] == [0.8, 0.6]
    # A name is shown as written, never read as markup.
    assert found["&lt;b&gt;MAN&lt;/b&gt;"] == [0.2, 0.3]
    assert len({trace.marker.symbol for trace in fig.data}) == 3
    # Means: REAP 0.45, MAN 0.25, the whole 0.7.
    assert capability.describe(scores.rename(index={"<b>MAN</b>": "MAN"})) == (
        "Mean of 2 benchmarks: most REAP 0.450, least MAN 0.250; Original model 0.700."
    )


def test_every_published_table_draws():
    for table in TABLES:
        chart = winners_of(table)
        cells = len(published_settings(table)) * chart.table["benchmark"].nunique()
        assert len(chart.table) == cells
        assert len(chart.figure(dark=False).layout.annotations) == cells


def test_the_leaderboard_is_the_papers():
    """Qwen3 at 25%, Table 1: the order of the paper's own average ranks, best first."""
    (qwen,) = (
        setting
        for setting in published_settings("unified-table-1")
        if setting.model.startswith("Qwen3")
    )
    table = leaderboard(qwen, {})
    assert table["candidate"].tolist() == [
        *("MAN", "MSAN", "SEER", "MoNE", "EAN", "REAP", "Frequency"),
        "Original model",
    ]
    printed = [2.75, 3.25, 3.92, 4.17, 4.42, 4.67, 4.83]
    assert table["average_rank"].tolist()[:-1] == pytest.approx(printed, abs=0.006)
    only_math = leaderboard(qwen, {"coding": 0, "writing": 0, "multiple choice": 0})
    row = only_math.set_index("candidate").loc["MAN"]
    assert row["average"] == pytest.approx((row["GSM8K"] + row["MATH-500"]) / 2)


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


@pytest.mark.parametrize("dark", [False, True])
def test_the_lens_is_read_on_every_ground(dark):
    for ground in (*text_lens.hatch(dark), paper(dark)):
        assert contrast(ink(dark), ground) >= 4.5
    table = pd.DataFrame({"change": [np.nan, 0.0, 4.0, -2.0]})
    colors = text_lens.token_colors(table, dark)
    assert colors[:2] == [paper(dark)] * 2
    assert colors[2] == series_color(1, dark)  # the largest change has the whole colour
    for color in colors:
        assert contrast(text_on(color), color) >= 4.5


@pytest.mark.parametrize(
    ("token", "shown"),
    [
        ("a\n", "a\u21b5\n"),
        ("  ", "\u2423\u2423"),
        (" x", " x"),
        ("\t", "\u21e5\t"),
        ("", "\u25a1"),
        ("\x1b[1m\u202e", " [1m "),
    ],
)
def test_a_token_is_seen_whatever_it_is(token, shown):
    assert text_lens.visible(token) == shown


@pytest.mark.parametrize("table", TABLES)
def test_no_winner_of_a_paper_has_its_name_cut(table):
    words = [annotation.text for annotation in winners_of(table).figure().layout.annotations]
    assert not [text for text in words if text.endswith(".") or ".<br>" in text]


def test_candidates_that_win_as_often_are_named_in_the_order_of_their_names():
    # Ties by far more names than a sort keeps in order by chance.
    names = [f"candidate {number:02}" for number in range(40)]
    generator = np.random.default_rng(0)
    for _ in range(3):
        won = pd.DataFrame({"winner": generator.permutation([*names, "last", "last"])})
        said = winner_map.describe(won.assign(tied=1))
        tied = ", ".join(f"{name} 1" for name in names)
        assert said == f"Of 42 cells with a winner: last 2, {tied}."


def test_series_that_end_alike_are_named_in_the_order_of_their_names(sweep):
    alike = sweep.assign(mean=0.5)
    for rows in (alike, alike.iloc[::-1]):
        said = evaluation_curves.describe(rows, label="ESAP", higher_is_better=True)
        assert said.count("best <b> 0.5, worst reap 0.5") == 2


def test_tables_are_sorted_in_the_same_order_by_every_version_of_pandas():
    # By one column only in a stable way; by several, pandas is stable.
    for path in sorted((ROOT / "app").rglob("*.py")) + sorted((ROOT / "analysis").rglob("*.py")):
        source = path.read_text(encoding="utf-8")
        for node in ast.walk(ast.parse(source)) if "sort_values" in source else ():
            if not isinstance(node, ast.Call) or "sort_values" not in ast.unparse(node.func)[-11:]:
                continue
            by = node.args[0] if node.args else None
            several = isinstance(by, ast.List) and len(by.elts) > 1
            words = {keyword.arg: ast.unparse(keyword.value) for keyword in node.keywords}
            assert (
                several
                or words.get("kind") == "'stable'"
                or ast.unparse(node)
                in {
                    "table.assign(over=table['corpus'] != ALL_CORPORA).sort_values(by, "
                    "ignore_index=True)"
                }
            ), f"{path.name}:{node.lineno}"
