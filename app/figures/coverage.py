"""Coverage: how much of each text's saliency the kept experts hold."""

import pandas as pd
import plotly.graph_objects as go

from app.figures.theme import apply_theme, ink, paper, plain, primary, text_on


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
