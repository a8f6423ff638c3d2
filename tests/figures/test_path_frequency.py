"""Path frequency: a cell for each expert that a path passes, none elsewhere; a panel a text."""

import numpy as np
import pandas as pd
import pytest

from app.charts import paths as path_frequency

COUNTS = {"a": 4, "b": 2}


@pytest.fixture
def table():
    rows = [
        *[("a", 2, 0, 4, 0), ("a", 2, 1, 0, 3)],
        *[("a", 5, 0, 1, 2), ("a", 5, 1, 4, 1), ("a", 5, 2, 0, 4)],
        *[("b", 2, 0, 0, 3), ("b", 2, 1, 1, 1)],
        *[("b", 5, 0, 0, 4), ("b", 5, 1, 2, 0), ("b", 5, 2, 1, 2)],
    ]
    return pd.DataFrame(rows, columns=["corpus", "layer", "expert", "num_samples", "rank"])


@pytest.mark.parametrize("dark", [False, True])
def test_cells_hold_shares_and_what_is_said_of_them(table, dark):
    fig = path_frequency.path_frequency(table, COUNTS, dark=dark)
    first, second = fig.data
    # Layer 2 has two experts; who is on no path is empty too.
    nan = np.nan
    assert np.array_equal(first.z, [[1, nan, nan], [0.25, 1, nan]], equal_nan=True)
    assert np.array_equal(second.z, [[nan, 0.5, nan], [nan, 1, 0.5]], equal_nan=True)
    assert (first.zmin, first.zmax) == (second.zmin, second.zmax) == (0, 1)
    # Samples, and the rank counted from 1.
    assert first.customdata[1].tolist() == [[1, 3], [4, 2], [0, 5]]
    assert list(fig.layout.yaxis.ticktext) == ["2", "5"]
    titles = [each.text for each in fig.layout.annotations]
    assert titles == ["a: 4 samples", "b: 2 samples"]


def test_names_of_texts_are_plain_text(table):
    named = table.assign(corpus="<b>x</b>")
    fig = path_frequency.path_frequency(named.iloc[:5], {"<b>x</b>": 4})
    assert "<b>" not in fig.layout.annotations[0].text


def test_the_height_is_bounded():
    rows = [("a", layer, 0, 1, layer) for layer in range(200)]
    table = pd.DataFrame(rows, columns=["corpus", "layer", "expert", "num_samples", "rank"])
    fig = path_frequency.path_frequency(table, {"a": 1})
    assert fig.layout.height < 600
    assert len(fig.layout.yaxis.tickvals) < 30


def test_the_sentence_counts_experts(table):
    assert path_frequency.describe(table, COUNTS) == (
        "Of 5 experts, paths pass through 3 on a, 3 on b; 1 on every text and 0 on none."
    )
    assert path_frequency.describe(table.iloc[:5], {"a": 4}) == (
        "Of 5 experts, paths pass through 3 on a."
    )
