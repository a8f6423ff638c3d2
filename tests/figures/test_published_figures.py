"""Winner map and capability profile: what stands where."""

import pandas as pd
import pytest

from app.charts import capability, winner_map
from app.charts.published import TABLES, leaderboard, settings_of, winners_of
from app.charts.theme import contrast


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


@pytest.mark.parametrize("dark", [False, True])
def test_each_cell_has_its_winner(won, dark):
    fig = winner_map.winner_map(won, dark=dark)
    (cells,) = fig.data
    # 0 = nobody, then the winners in order of appearance.
    assert cells.z.tolist() == [[1, 2], [0, 1]]
    words = {(each.y, each.x): each.text for each in fig.layout.annotations}
    assert words == {
        ("m 25%<br>4 candidates", "x"): "REAP",
        ("m 25%<br>4 candidates", "y"): "MAN<br>+2",
        ("m 50%<br>2 candidates", "x"): "all 0",
        ("m 50%<br>2 candidates", "y"): "REAP",
    }
    assert list(cells.y) == ["m 25%<br>4 candidates", "m 50%<br>2 candidates"]
    assert cells.customdata[0][0] == "REAP: 0.500, 0.100 before the next"


def test_a_cell_of_one_candidate_has_no_winner(won):
    alone = won.iloc[[0]].assign(winner="", score=0.5, margin=0.0, tied=0, candidates=1)
    fig = winner_map.winner_map(pd.concat([alone, won.iloc[[1]]]))
    words = [each.text for each in fig.layout.annotations]
    assert words == ["1 candidate", "MAN<br>+2"]
    assert fig.data[0].z.tolist() == [[0, 1]]


def test_colours_change_between_the_codes_and_names_are_readable(won):
    fig = winner_map.winner_map(won)
    scale = fig.data[0].colorscale
    # Three colours, each around its code 0, 1, 2 of 0..2.
    assert [place for place, _ in scale] == [0, 0.25, 0.25, 0.75, 0.75, 1]
    background = {"REAP": scale[2][1], "MAN<br>+2": scale[4][1], "all 0": scale[0][1]}
    for note in fig.layout.annotations:
        assert contrast(note.font.color, background[note.text]) >= 4.5


def named(won, name, benchmarks, tied=1):
    """The text of a cell with a winner of this name, in a row of so many."""
    rows = [won.iloc[0].to_dict() | {"benchmark": str(n)} for n in range(benchmarks)]
    rows[0] |= {"winner": name, "tied": tied}
    return winner_map.winner_map(pd.DataFrame(rows)).layout.annotations[0].text


def test_long_names_stay_within_their_cells(won):
    # Of 500 px a cell of three has 166, which hold 26 letters of 6 px with air on both sides.
    name = "CAMERA-P, on demo-code, neurons by layer"
    assert named(won, name, 3) == "CAMERA-P, on demo-code,<br>neurons by layer"
    assert named(won, name, 3, tied=2) == "CAMERA-P, on demo-code.<br>+1"
    assert named(won, name, 1) == name
    longer = f"{name} 0123456789"
    assert named(won, longer, 3).endswith("<br>neurons by layer 0123456.")
    # Of sixteen, 31 px hold five of 5 px.
    assert named(won, "Frequency", 16) == "Fre."


def test_the_sentence_counts_the_cells(won):
    assert winner_map.describe(won) == (
        "Of 3 cells with a winner: REAP 2, MAN 1; 1 of them shared (the first is named)."
    )
    assert winner_map.describe(won[won["winner"] == ""]) == "No benchmark has a winner."


@pytest.fixture
def scores():
    return pd.DataFrame(
        {"x": [0.8, 0.4, 0.2], "y": [0.6, 0.5, 0.3]}, index=["Full model", "REAP", "<b>MAN</b>"]
    )


@pytest.mark.parametrize("dark", [False, True])
def test_dots_lie_at_their_scores(scores, dark):
    fig = capability.capability_dots(scores, dark=dark)
    found = {trace.name: list(trace.x) for trace in fig.data}
    assert found["REAP"] == [0.4, 0.5]
    assert found["Full model"] == [0.8, 0.6]
    # A name is shown as written, never read as markup.
    assert found["&lt;b&gt;MAN&lt;/b&gt;"] == [0.2, 0.3]
    assert len({trace.marker.symbol for trace in fig.data}) == 3


@pytest.mark.parametrize("dark", [False, True])
def test_the_radar_closes_its_loops(scores, dark):
    fig = capability.capability_radar(scores, dark=dark)
    loops = {trace.name: (list(trace.r), list(trace.theta)) for trace in fig.data}
    assert loops["REAP"] == ([0.4, 0.5, 0.4], ["x", "y", "x"])


def test_the_profile_in_a_sentence(scores):
    # Means: REAP 0.45, MAN 0.25, the whole 0.7.
    assert capability.describe(scores.rename(index={"<b>MAN</b>": "MAN"})) == (
        "Mean of 2 benchmarks: most REAP 0.450, least MAN 0.250; Full model 0.700."
    )


@pytest.mark.parametrize("table", TABLES)
def test_every_published_table_draws(table):
    chart = winners_of(table)
    cells = len(settings_of(table)) * chart.table["benchmark"].nunique()
    assert len(chart.table) == cells
    assert len(chart.figure(dark=False).layout.annotations) == cells


def test_the_leaderboard_is_the_papers():
    """Qwen3 at 25%, Table 1: the order of the paper's own average ranks, best first."""
    (qwen,) = (each for each in settings_of("unified-table-1") if each.model.startswith("Qwen3"))
    table = leaderboard(qwen, {})
    assert table["candidate"].tolist() == [
        *("MAN", "MSAN", "SEER", "MoNE", "EAN", "REAP", "Frequency"),
        "Full model",
    ]
    printed = [2.75, 3.25, 3.92, 4.17, 4.42, 4.67, 4.83]
    assert table["average_rank"].tolist()[:-1] == pytest.approx(printed, abs=0.006)
    only_math = leaderboard(qwen, {"coding": 0, "writing": 0, "multiple choice": 0})
    row = only_math.set_index("candidate").loc["MAN"]
    assert row["average"] == pytest.approx((row["GSM8K"] + row["MATH-500"]) / 2)
