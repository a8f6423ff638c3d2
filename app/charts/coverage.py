"""Coverage: how much of each corpus's saliency the kept experts hold."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import pandas as pd
import plotly.graph_objects as go

from analysis.errors import StatsError
from analysis.foreign_text import in_html
from analysis.ranking.coverage import Blender
from analysis.stats.blend import mixture_of
from app.charts.chart import Drawing, chart, of_corpora
from app.charts.theme import ink, paper, primary, text_on, themed
from pruning.planning.choice import corpora_words

if TYPE_CHECKING:
    from app.loaded import Loaded


def blender(loaded: Loaded) -> Blender:
    """Coverage of every corpus by the experts that a blend keeps."""
    loaded.routed_criterion()
    # Select first: its error lists the corpora if none or an unknown one is named.
    criterion, runs = loaded.first.criterion, list(loaded.runs.values())
    if len(runs) < 2:
        raise StatsError(f"A blend mixes corpora; {loaded.model.name} has {len(runs)}.")
    return Blender(mixture_of(runs), criterion, loaded.choices.gate, loaded.fraction)


def coverage_table(loaded: Loaded) -> pd.DataFrame:
    """Table `corpus, share, coverage, equal`; see `coverage_figure`."""
    blend, weights = blender(loaded), loaded.weights
    mixed = list(weights.values())
    return pd.DataFrame(
        {
            "corpus": list(weights),
            "share": [weight / sum(mixed) for weight in mixed],
            "coverage": blend.coverage(mixed),
            "equal": blend.coverage([1.0] * len(mixed)),
        }
    )


@chart("coverage", "explore")
def draw(loaded: Loaded) -> Drawing:
    """How much of each corpus's saliency is kept."""
    table = coverage_table(loaded)
    about = of_corpora(loaded, loaded.first.criterion.label, corpora_words(loaded.choices.corpora))
    return Drawing(partial(coverage_figure, table), table, describe(table), about)


def coverage_figure(table: pd.DataFrame, *, dark: bool = False) -> go.Figure:
    """Figure of a table `corpus, share, coverage, equal`: a bar per corpus, the worst outlined.

    Coverage (0..1) is under the current weights; `equal` is that under equal weights.
    """
    corpora = [in_html(str(name)) for name in table["corpus"]]
    is_worst = table["coverage"] == table["coverage"].min()
    edge = {"color": ink(dark), "width": [3 if worst else 0 for worst in is_worst]}
    bars = go.Bar(
        x=table["coverage"],
        y=corpora,
        orientation="h",
        name="these weights",
        marker={"color": primary(dark), "line": edge},
        text=[
            f"{value:.1%}" + (", worst" if worst else "")
            for value, worst in zip(table["coverage"], is_worst, strict=True)
        ],
        textposition="inside",
        insidetextanchor="start",
        textfont={"color": text_on(primary(dark))},
        hovertemplate="%{y}: %{x:.2%}<extra></extra>",
    )
    outline = {"color": ink(dark), "width": 2}
    equal = go.Scatter(
        x=table["equal"],
        y=corpora,
        mode="markers",
        name="equal weights",
        marker={"symbol": "diamond", "size": 12, "color": paper(dark), "line": outline},
        hovertemplate="%{y}, equal weights: %{x:.2%}<extra></extra>",
    )
    return themed(
        [bars, equal],
        dark,
        x={"title": "saliency held by the kept experts", "tickformat": ".0%", "range": [0, 1]},
        y={"type": "category", "autorange": "reversed", "showgrid": False},
        height=110 + 44 * len(corpora),
        bargap=0.35,
    )


def describe(table: pd.DataFrame) -> str:
    """One sentence: the worst-covered corpus, now and under equal weights."""
    worst = table.sort_values("coverage", kind="stable").iloc[0]
    return (
        f"The worst-covered corpus is {worst['corpus']} with {worst['coverage']:.1%}; under equal "
        f"weights the worst has {table['equal'].min():.1%}."
    )
