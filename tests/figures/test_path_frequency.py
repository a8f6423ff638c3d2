"""Path frequency: a cell for each expert, none where a layer has fewer."""

import numpy as np
import pandas as pd
import pytest

from app.figures import path_frequency


@pytest.fixture
def table():
    rows = [(2, 0, 3, 0), (2, 1, 0, 3), (5, 0, 1, 2), (5, 1, 3, 1), (5, 2, 0, 4)]
    return pd.DataFrame(rows, columns=["layer", "expert", "num_samples", "rank"])


@pytest.mark.parametrize("dark", [False, True])
def test_cells_hold_counts_and_ranks_from_1(table, dark):
    fig = path_frequency.path_frequency(table, 3, dark=dark)
    (cells,) = fig.data
    assert np.array_equal(cells.z, [[3, 0, np.nan], [1, 3, 0]], equal_nan=True)
    assert (cells.zmin, cells.zmax) == (0, 3)
    assert cells.customdata.tolist() == [[1, 4, 0], [3, 2, 5]]
    assert list(fig.layout.yaxis.ticktext) == ["2", "5"]


def test_the_sentence_counts_experts(table):
    assert path_frequency.describe(table, 3) == (
        "Of 5 experts 2 are on paths of all 3 samples, 1 on those of some, 2 on none."
    )
