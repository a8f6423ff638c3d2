"""Tokens needed for a choice: pruned sets from parts of the tokens against all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from functools import partial
from typing import TYPE_CHECKING, Any

import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from analysis.cache_keys import most_results
from analysis.criteria import Criterion, get_criterion
from analysis.errors import PlanError, StatsError
from analysis.foreign_text import in_html
from analysis.ranking.experts import can_rank
from analysis.ranking.overlap import overlap_of_parts
from analysis.stats.columns import Gate
from analysis.stats.manifest import SHARDS, Run
from analysis.stats.shards import TOKEN_PARTS, stats_at
from analysis.stats.tables import ExpertStats
from app.charts.chart import Drawing, chart, of_corpora
from app.charts.criterion_looks import looks
from app.charts.theme import OVER_TITLES, apply_theme
from app.charts.traces import OVERLAP_AXIS, chance, series
from app.choices import CURVE_BESIDE

if TYPE_CHECKING:
    from app.loaded import Loaded


@most_results(8)
def parts_of(run: Run) -> list[ExpertStats]:
    """Statistics of growing parts of the tokens of a run."""
    return [stats_at(run, parts) for parts in TOKEN_PARTS]


def parts_table(
    parts: Mapping[str, Sequence[ExpertStats]],
    criteria: Sequence[Criterion],
    gate: Gate,
    sparsity: Fraction,
) -> pd.DataFrame:
    """Table `corpus, criterion, tokens, overlap, chance`; by corpus, `parts` grow in size."""
    tables = {
        (corpus, criterion.label): overlap_of_parts(corpus_parts, criterion, gate, sparsity)
        for corpus, corpus_parts in parts.items()
        for criterion in criteria
    }
    table = pd.concat(tables, names=["corpus", "criterion"]).reset_index(level=[0, 1])
    return table[["corpus", "criterion", "tokens", "overlap", "chance"]]


@chart("overlap-by-tokens", "explore")
def draw(loaded: Loaded) -> Drawing:
    """How many tokens a choice needs."""
    loaded.check_removes()
    if not loaded.runs:
        raise StatsError(f"{loaded.model.name} has not been calibrated; see `moeprune calibrate`.")
    parts = {
        corpus: loaded.study.cached(parts_of, run)
        for corpus, run in loaded.runs.items()
        if SHARDS in run.manifest.files
    }
    if not parts:
        raise StatsError("No run keeps its tokens in parts; calibrate again.")
    # The default criteria, or the chosen ones that can rank on parts.
    if loaded.choices.beside is None:
        names = dict.fromkeys((loaded.routed_criterion().name, *CURVE_BESIDE))
        criteria = [get_criterion(name) for name in names]
    else:
        part = next(iter(parts.values()))[0]
        names = dict.fromkeys((loaded.choices.ranking_criterion.name, *loaded.choices.beside))
        criteria = [
            criterion for criterion in map(get_criterion, names) if can_rank(criterion, part)
        ]
    if not criteria:
        raise PlanError("Choose a criterion above.")
    table = loaded.study.cached(parts_table, parts, criteria, loaded.choices.gate, loaded.fraction)
    about = of_corpora(loaded, f"gate {loaded.choices.gate}")
    return Drawing(partial(parts_curve, table), table, describe(table), about)


def parts_curve(table: pd.DataFrame, *, dark: bool = False) -> go.Figure:
    """Figure of a table `corpus, criterion, tokens, overlap, chance`: a panel per corpus.

    `overlap` (0..1) is the share of the pruned set of `tokens` tokens that all tokens prune too.
    """
    rows = table.rename(columns={"overlap": "value"})
    return panels_by_tokens(rows, {**OVERLAP_AXIS, "title": "overlap with all tokens"}, dark)


def panels_by_tokens(table: pd.DataFrame, y_axis: dict[str, Any], dark: bool) -> go.Figure:
    """Figure of a table `corpus, criterion, tokens, value`: a panel per corpus, a line per series.

    With a column `chance` its line lies below; with `low` and `high`, bars show the spread.
    """
    corpora = list(dict.fromkeys(table["corpus"]))
    columns = min(len(corpora), 3)
    rows = -(-len(corpora) // columns)
    fig = make_subplots(
        rows,
        columns,
        shared_yaxes=True,
        horizontal_spacing=0.03,
        vertical_spacing=0.3 / rows,
        subplot_titles=[in_html(corpus) for corpus in corpora],
    )
    look_by_name = looks(table["criterion"].unique(), dark)
    for panel, corpus in enumerate(corpora):
        lines = table[table["corpus"] == corpus].sort_values("tokens", kind="stable")
        place = {"row": panel // columns + 1, "col": panel % columns + 1}
        if "chance" in lines:
            line = lines.drop_duplicates("tokens")
            shows: dict[str, Any] = {"legendgroup": "chance", "showlegend": panel == 0}
            points = _tokens(line), line["chance"]
            fig.add_trace(chance(*points, dark, "chance %{y:.3f}", **shows), **place)
        for name, line in lines.groupby("criterion", sort=False):
            hover = f"{in_html(str(name))}, %{{x}} tokens: %{{y:.3f}}"
            more: dict[str, Any] = {"legendgroup": name, "showlegend": panel == 0}
            if "low" in line:
                spread = (line["high"] - line["value"], line["value"] - line["low"])
                more["error_y"] = {"array": spread[0], "arrayminus": spread[1], "thickness": 1}
            points = _tokens(line), line["value"]
            trace = series(look_by_name[str(name)], str(name), points, hover, **more)
            fig.add_trace(trace, **place)
    fig.update_annotations(font={"size": 14})
    apply_theme(
        fig,
        dark,
        x={"type": "category", "title": "tokens", "showgrid": False},
        y={name: value for name, value in y_axis.items() if name != "title"},
        height=300 * rows + 20,
        margin={"t": 24},
        legend=OVER_TITLES,
    )
    return fig.update_yaxes(title_text=y_axis["title"], col=1)


def describe(table: pd.DataFrame) -> str:
    """One sentence: overlap of the smallest part, per criterion."""
    first = table.loc[table.groupby(["corpus", "criterion"], sort=False)["tokens"].idxmin()]
    means = first.groupby("criterion", sort=False)[["overlap", "chance"]].mean()
    shares = ", ".join(f"{name} {row['overlap']:.0%}" for name, row in means.iterrows())
    return (
        "Overlap of the pruned set of the smallest part with that of all tokens, mean over "
        f"corpora: {shares}; chance {means['chance'].iloc[0]:.0%}."
    )


def _tokens(rows: pd.DataFrame) -> list[str]:
    return [_short(int(tokens)) for tokens in rows["tokens"]]


def _short(tokens: int) -> str:
    for size, letter in ((10**9, "G"), (10**6, "M")):
        if tokens >= size:
            return f"{tokens / size:.3g}{letter}"
    return f"{tokens:,}"
