"""Small tables, one per figure: layers start at 3 and leave a hole, counts are no powers of two."""

import numpy as np
import pandas as pd
import pytest


@pytest.fixture
def variants():
    """Overlap 0.9 for (1, 0, 2), 0.1 for (0, 2, 0), 0.5 for the others; random sets have 0.2."""
    rows = [(b, alpha, beta) for b in (0, 1) for alpha in (0, 1, 2) for beta in (0, 1, 2)]
    table = pd.DataFrame(rows, columns=["b", "alpha", "beta"]).assign(overlap=0.5, chance=0.2)
    table.loc[rows.index((1, 0, 2)), "overlap"] = 0.9
    table.loc[rows.index((0, 2, 0)), "overlap"] = 0.1
    return table.drop(rows.index((1, 0, 0))).reset_index(drop=True)


@pytest.fixture
def corpora():
    rows = [("code", "prose", 0.7), ("math", "code", 0.4), ("prose", "math", np.nan)]
    return pd.DataFrame(rows, columns=["corpus_a", "corpus_b", "overlap"])


@pytest.fixture
def separation():
    rows = [
        (3, "Magnitude", 0.1, 0.5),
        (7, "Magnitude", 0.3, 0.3),
        (3, "AIMER", 0.2, 0.1),
        (7, "AIMER", 0.0, 0.3),
    ]
    return pd.DataFrame(rows, columns=["layer", "panel", "gap", "band"])


@pytest.fixture
def ranked():
    """Layer 3 has five experts and keeps 3, layer 7 has three and keeps 2, by falling id."""
    rows = [
        (panel, layer, expert, rank, 1 - rank / (count - 1), rank < keep)
        for panel, shift in (("Magnitude", 0), ("AIMER", 1))
        for layer, count, keep in ((3, 5, 3), (7, 3, 2))
        for rank, expert in enumerate((count - 1 - place + shift) % count for place in range(count))
    ]
    return pd.DataFrame(rows, columns=["panel", "layer", "expert", "rank", "value", "kept"])


@pytest.fixture
def sizes():
    gib = 1024**3
    rows = [("routed experts", 50 * gib, 25 * gib), ("attention", 4 * gib, 4 * gib)]
    return pd.DataFrame(rows, columns=["part", "before", "after"])
