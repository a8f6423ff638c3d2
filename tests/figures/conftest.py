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
def strata():
    """Layer 3 has five experts and keeps 3, layer 7 has three and keeps 2.

    AIMER's order is by falling id, one later; its scores rise with the rank. Random weights spread
    by 1% under AIMER and by 2% under Magnitude, whose medians are 1.1% and 30%.
    """
    rows = [
        (panel, layer, (count - 1 - rank + shift) % count, rank, sign * (count - rank), rank < keep)
        for panel, shift, sign in (("AIMER", 1, -1.0), ("Magnitude", 0, 1.0))
        for layer, count, keep in ((3, 5, 3), (7, 3, 2))
        for rank in range(count)
    ]
    columns = ["panel", "layer", "expert", "rank", "score", "kept"]
    table = pd.DataFrame(rows, columns=columns).assign(
        value=lambda frame: (
            frame["score"].abs().sub(1) / frame.groupby(["panel", "layer"])["rank"].transform("max")
        )
    )
    spread = {("AIMER", 3): 0.01, ("AIMER", 7): 0.012, ("Magnitude", 3): 0.2, ("Magnitude", 7): 0.4}
    places = list(zip(table["panel"], table["layer"], strict=True))
    return table.assign(
        spread=[spread[place] for place in places],
        gap=[0.0 if layer == 3 else 0.004 for _, layer in places],
        random_spread=[0.01 if panel == "AIMER" else 0.02 for panel, _ in places],
        random_gap=0.001,
    )


@pytest.fixture
def sizes():
    gib = 1024**3
    rows = [("routed experts", 50 * gib, 25 * gib), ("attention", 4 * gib, 4 * gib)]
    return pd.DataFrame(rows, columns=["part", "before", "after"])
