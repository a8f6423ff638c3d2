"""Coverage: how much of each text's saliency the kept experts hold."""

from collections.abc import Sequence

import pandas as pd
import plotly.graph_objects as go

from analysis.errors import StatsError
from analysis.ranking.coverage import Blender
from analysis.stats.blend import Mixture
from analysis.stats.store import Run
from app.charts.chart import Chart, Drawing
from app.charts.context import Context
from app.charts.theme import apply_theme, ink, paper, plain, primary, text_on


def mixture(runs: Sequence[Run]) -> Mixture:
    """The sums of several runs, ready to be mixed.

    Raises:
        StatsError: runs that cannot be added.
    """
    return Mixture(runs)


def blender(context: Context) -> Blender:
    """Coverage of every corpus by what a blend keeps.

    Raises:
        UserError: a criterion without corpora, or corpora that cannot be mixed.
    """
    context.routed_criterion()
    # Found first: that says which corpora there are, where none or an unknown one is named.
    criterion, runs = context.first.criterion, list(context.runs.values())
    if len(runs) < 2:
        raise StatsError(f"A blend mixes texts; {context.model.name} has {len(runs)}.")
    return Blender(context.keep(mixture, runs), criterion, context.gate, context.fraction)


def coverage_table(context: Context) -> pd.DataFrame:
    """Table `corpus, share, coverage, equal`: of each corpus, by what is kept; see `blender`."""
    blend, weights = blender(context), context.weights
    mixed = list(weights.values())
    return pd.DataFrame(
        {
            "corpus": list(weights),
            "share": [weight / sum(mixed) for weight in mixed],
            "coverage": blend.coverage(mixed),
            "equal": blend.coverage([1.0] * len(mixed)),
        }
    )


def _draw(context: Context) -> Drawing:
    table = coverage_table(context)
    label, corpora = context.first.criterion.label, " + ".join(context.corpora)
    return Drawing(
        "coverage",
        lambda dark: coverage_figure(table, dark=dark),
        table,
        describe(table),
        context.about(label, corpora),
    )


COVERAGE = Chart("coverage", "explore", "How much of each text's saliency is kept", _draw)


def coverage_figure(table: pd.DataFrame, *, dark: bool = False) -> go.Figure:
    """Figure of a table `corpus, share, coverage, equal`: a bar a text, the worst one outlined.

    `coverage` is under the weights in use, `equal` under equal weights: both shares, 0..1.
    """
    corpora = [plain(str(name)) for name in table["corpus"]]
    fig = go.Figure(_bars(table, dark))
    fig.add_trace(
        go.Scatter(
            x=table["equal"],
            y=corpora,
            mode="markers",
            name="equal weights",
            marker={
                "symbol": "diamond",
                "size": 12,
                "color": paper(dark),
                "line": {"color": ink(dark), "width": 2},
            },
            hovertemplate="%{y}, equal weights: %{x:.2%}<extra></extra>",
        )
    )
    apply_theme(fig, dark)
    fig.update_layout(height=110 + 44 * len(corpora), bargap=0.35, margin={"t": 30})
    fig.update_xaxes(title_text="saliency held by the kept experts", tickformat=".0%", range=[0, 1])
    fig.update_yaxes(type="category", autorange="reversed", showgrid=False)
    return fig


def describe(table: pd.DataFrame) -> str:
    """One sentence: the worst-covered text, now and under equal weights."""
    worst = table.sort_values("coverage").iloc[0]
    return (
        f"The worst-covered text is {worst['corpus']} with {worst['coverage']:.1%}; under equal "
        f"weights the worst has {table['equal'].min():.1%}."
    )


def _bars(table: pd.DataFrame, dark: bool) -> go.Bar:
    is_worst = table["coverage"] == table["coverage"].min()
    return go.Bar(
        x=table["coverage"],
        y=[plain(str(name)) for name in table["corpus"]],
        orientation="h",
        name="these weights",
        marker={
            "color": primary(dark),
            "line": {"color": ink(dark), "width": [3 if worst else 0 for worst in is_worst]},
        },
        text=[
            f"{value:.1%}" + (", worst" if worst else "")
            for value, worst in zip(table["coverage"], is_worst, strict=True)
        ],
        textposition="inside",
        insidetextanchor="start",
        textfont={"color": text_on(primary(dark))},
        hovertemplate="%{y}: %{x:.2%}<extra></extra>",
    )
