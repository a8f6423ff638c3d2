"""Variance of hidden states per layer: the original and pruned models."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from analysis.errors import StatsError
from analysis.foreign_text import in_html
from app.charts.chart import Drawing, chart, made_by, model_fact
from app.charts.criterion_looks import looks
from app.charts.evaluations import pool_means, series_name
from app.charts.names import FULL
from app.charts.theme import themed
from app.charts.traces import line_mode, series
from app.choices import result_words, unless
from pruning.records.variances import VarianceRecord, VarianceStore, variance_overview
from pruning.spec.base import repeated

if TYPE_CHECKING:
    from app.loaded import Loaded

MOST_LINES: Final = 6  # one per colour
_WIDE: Final = 10.0  # larger ranges get a logarithmic axis


def variance_results(records: Sequence[VarianceRecord]) -> pd.DataFrame:
    """`variance_overview` with the column `candidate`: criterion, corpora, sparsity.

    Of repeated measurements on the same tokens the newest stays; draws of Random are one candidate
    with their mean. Sorted by corpus and candidate, so that colours do not depend on file names.
    """
    table = variance_overview(records)
    names = [
        f"{series_name(row)}, {row['removed']:.0%}" if row["removed"] else FULL
        for row in table.to_dict("records")
    ]
    table = table.assign(candidate=names).sort_values("created_at", kind="stable")
    keys = ["draw", "candidate", "layer"]
    table = pool_means(table, keys, ["variance"]).drop_duplicates(keys, keep="last")
    return table.sort_values(["corpus", "draw", "candidate", "layer"], ignore_index=True)


def draws_of(results: pd.DataFrame) -> dict[str, str]:
    """Label -> draw: the measurements on the same tokens in the same setup."""
    draws = results.drop_duplicates("draw")
    once = draws["corpus"].value_counts()
    labels = {}
    for row in draws.to_dict("records"):
        more = "" if once[row["corpus"]] == 1 else f", {row['num_tokens']} tokens, {row['dtype']}"
        # Of draws with equal labels the newest, which comes last.
        labels[f"{row['corpus']}{more}"] = str(row["draw"])
    return labels


def candidates_of(results: pd.DataFrame, draw: str) -> list[str]:
    """The pruned candidates of a draw, closest to the original model first."""
    rows = results[results["draw"] == draw]
    near = list(deviations(rows).index)
    return near + [name for name in dict.fromkeys(rows["candidate"]) if name not in (FULL, *near)]


@chart("hidden-states", "evaluate")
def draw(loaded: Loaded) -> Drawing:
    """How far hidden states change."""
    choice, results = loaded.choices.results, loaded.choices.results.table
    if results is None:
        records = loaded.study.opened(VarianceStore).records(loaded.model.identity)
        if not records:
            raise StatsError(
                f"No hidden states of {loaded.model.name} were measured yet; see "
                "`moeprune variance`."
            )
        results = variance_results(records)
    usual = next(iter(draws_of(results).values()))
    draw = choice.draw or usual
    first = candidates_of(results, draw)[:MOST_LINES]
    lit = first if choice.lit is None else list(choice.lit)
    measurements = results[results["draw"] == draw]
    rows = measurements[measurements["candidate"].isin([FULL, *lit])].reset_index(drop=True)
    rows = rows[["candidate", "layer", "variance", "full", "removed", "num_tokens"]]
    tokens = int(rows["num_tokens"].max()) if len(rows) else 0
    return Drawing(
        partial(variance_lines, rows),
        rows,
        describe(rows),
        made_by(
            model_fact(loaded),
            f"variance of hidden states, {tokens:,} tokens of {measurements['corpus'].iloc[0]}",
        ),
        options=(
            *result_words(draw=unless(draw, usual)),
            *(repeated("--line", lit) if lit != first else ()),
        ),
    )


def variance_lines(table: pd.DataFrame, *, dark: bool = False) -> go.Figure:
    """Figure of a table `candidate, layer, variance` (arXiv:2603.18492, Figure 6)."""
    lines, candidates = [], looks(map(str, table["candidate"].unique()), dark)
    # The original model comes last: it lies on top.
    for name, look in sorted(candidates.items(), key=lambda pair: pair[0] == FULL):
        rows, label = table[table["candidate"] == name], in_html(name)
        line = series(
            look,
            name,
            (rows["layer"], rows["variance"]),
            f"{label}, layer %{{x}}: %{{y:.4g}}",
            mode=line_mode(len(rows)),
            marker={"size": 8},
        )
        if name == FULL:
            line.line.width = 3
            line.marker = {"color": look.color, "size": 5}
        lines.append(line)
    low, high = table["variance"].min(), table["variance"].max()
    return themed(
        lines,
        dark,
        x={
            "title": "decoder layer",
            "showgrid": False,
            "tickformat": "d",
            "dtick": 1 if table["layer"].nunique() <= 24 else None,
        },
        y={"title": "variance of hidden states", "tickformat": ".3~g"}
        | ({"type": "log", "dtick": 1} if low > 0 and high / low > _WIDE else {}),
        height=400,
    )


def deviations(table: pd.DataFrame) -> pd.Series:
    """Distance of each candidate from the original model, closest first: a factor of at least 1.

    exp of the mean over layers of |ln(variance / the original's)|: twice and half the original's
    variance are both a factor of 2. Layers where either is 0 do not count.
    """
    wide = table.pivot_table(index="layer", columns="candidate", values="variance")
    if FULL not in wide:
        return pd.Series(dtype="float64")
    ratios = wide.drop(columns=FULL).div(wide[FULL], axis="index")
    ratios = ratios.where((ratios > 0) & (ratios < np.inf))
    means = ratios.apply(np.log).abs().mean()
    return means.apply(np.exp).sort_values(kind="stable")


def describe(table: pd.DataFrame) -> str:
    """One sentence: the candidates closest to and farthest from the original model."""
    factors = deviations(table).dropna()
    if factors.empty:
        return "Only the original model was measured."
    first = (
        f"closest to the original model {factors.index[0]}, by a factor of {factors.iloc[0]:.2f}"
    )
    if len(factors) == 1:
        return f"Variance of hidden states, mean over the layers: {first}."
    return (
        f"Variance of hidden states, mean over the layers: {first}; farthest {factors.index[-1]}, "
        f"{factors.iloc[-1]:.2f}."
    )
