"""The chart of hidden states: their variance layer by layer, full against pruned."""

from collections.abc import Collection, Sequence
from typing import Final

import pandas as pd

from app.charts.chart import Drawing, made_by
from app.figures import variance
from app.plots.evaluations import series_name
from app.plots.names import FULL
from pruning.evaluate.variance_record import VarianceRecord, variance_overview

MOST_LINES: Final = 6  # as many as there are colours


def variance_results(records: Sequence[VarianceRecord]) -> pd.DataFrame:
    """`variance_overview` with the column `candidate`: criterion, what ranked, share removed.

    Of a candidate that was measured twice on the same tokens the newest stays. Sorted by text and
    candidate, so that colours do not depend on the names of files.
    """
    table = variance_overview(records)
    names = [
        f"{series_name(row)}, {row['removed']:.0%}" if row["removed"] else FULL
        for row in table.to_dict("records")
    ]
    table = table.assign(candidate=names).sort_values("created_at", kind="stable")
    table = table.drop_duplicates(["draw", "candidate", "layer"], keep="last")
    return table.sort_values(["corpus", "draw", "candidate", "layer"], ignore_index=True)


def draws_of(results: pd.DataFrame) -> dict[str, str]:
    """Label -> draw: what was measured on the same tokens, in the same way."""
    drawn = results.drop_duplicates("draw")
    once = drawn["corpus"].value_counts()
    labels = {}
    for row in drawn.to_dict("records"):
        more = "" if once[row["corpus"]] == 1 else f", {row['num_tokens']} tokens, {row['dtype']}"
        label = f"{row['corpus']}{more}"
        # Of draws that nothing tells apart the newest: it comes last.
        labels[label] = str(row["draw"])
    return labels


def candidates_of(results: pd.DataFrame, draw: str) -> list[str]:
    """The pruned candidates of a draw, nearest to the full model first."""
    rows = results[results["draw"] == draw]
    near = list(variance.deviations(rows, FULL).index)
    return near + [name for name in dict.fromkeys(rows["candidate"]) if name not in (FULL, *near)]


def variance_chart(
    results: pd.DataFrame, draw: str, model: str, lit: Collection[str] | None = None
) -> Drawing:
    """The candidates of one draw beside the full model; only those in `lit`, where it is given."""
    rows = results[results["draw"] == draw]
    if lit is not None:
        rows = rows[rows["candidate"].isin([FULL, *lit])]
    rows = rows[["candidate", "layer", "variance", "full", "removed", "num_tokens"]]
    rows = rows.reset_index(drop=True)
    tokens = int(rows["num_tokens"].max()) if len(rows) else 0
    corpus = results.loc[results["draw"] == draw, "corpus"].iloc[0]
    return Drawing(
        "hidden-states",
        lambda dark: variance.variance_lines(rows, FULL, dark=dark),
        rows,
        variance.describe(rows, FULL),
        made_by(model, f"variance of hidden states, {tokens:,} tokens of {corpus}"),
    )
