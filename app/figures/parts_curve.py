"""How many tokens a choice needs: pruned sets of parts of the tokens against those of all."""

import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from app.figures.theme import (
    DASHES,
    SYMBOLS,
    apply_theme,
    ink,
    muted,
    plain,
    series_color,
)

_COLUMNS = 3


def parts_curve(table: pd.DataFrame, *, dark: bool = False) -> go.Figure:
    """Figure of a table `corpus, criterion, tokens, overlap, chance`: a panel a text.

    tokens is how many a part has; overlap, 0..1, the share of its pruned set that all tokens prune
    too, so that the last is 1; chance that of random sets.
    """
    corpora = list(dict.fromkeys(table["corpus"]))
    columns = min(len(corpora), _COLUMNS)
    rows = -(-len(corpora) // columns)
    fig = make_subplots(
        rows,
        columns,
        shared_yaxes=True,
        horizontal_spacing=0.03,
        vertical_spacing=0.3 / rows,
        subplot_titles=[plain(corpus) for corpus in corpora],
    )
    colors = {name: place for place, name in enumerate(dict.fromkeys(table["criterion"]))}
    for place, corpus in enumerate(corpora):
        where = {"row": place // columns + 1, "col": place % columns + 1}
        of_corpus = table[table["corpus"] == corpus]
        fig.add_trace(_chance(of_corpus, dark, named=place == 0), **where)
        for name, line in of_corpus.groupby("criterion", sort=False):
            trace = _line(str(name), colors[str(name)], line, dark)
            trace.showlegend = place == 0
            fig.add_trace(trace, **where)
    fig.update_annotations(font={"size": 14})
    apply_theme(fig, dark)
    fig.update_layout(height=300 * rows + 20, margin={"t": 70}, legend={"y": 1.12})
    fig.update_xaxes(type="category", title_text="tokens", showgrid=False)
    fig.update_yaxes(range=[-0.03, 1.06], tickformat=".1f")
    fig.update_yaxes(title_text="overlap with all tokens", col=1)
    return fig


def describe(table: pd.DataFrame) -> str:
    """One sentence: how much of each criterion's choice an eighth of the tokens already gives."""
    first = table.loc[table.groupby(["corpus", "criterion"], sort=False)["tokens"].idxmin()]
    means = first.groupby("criterion", sort=False)[["overlap", "chance"]].mean()
    shares = ", ".join(f"{name} {row['overlap']:.0%}" for name, row in means.iterrows())
    return (
        "With the smallest part of the tokens the pruned set has in common with that of all, mean "
        f"over the texts: {shares}; chance {means['chance'].iloc[0]:.0%}."
    )


def _tokens(rows: pd.DataFrame) -> list[str]:
    return [_short(int(tokens)) for tokens in rows["tokens"]]


def _short(tokens: int) -> str:
    for size, letter in ((10**9, "G"), (10**6, "M")):
        if tokens >= size:
            return f"{tokens / size:.3g}{letter}"
    return f"{tokens:,}"


def _chance(rows: pd.DataFrame, dark: bool, *, named: bool) -> go.Scatter:
    line = rows.drop_duplicates("tokens").sort_values("tokens")
    return go.Scatter(
        x=_tokens(line),
        y=line["chance"],
        name="chance",
        legendgroup="chance",
        showlegend=named,
        mode="lines",
        line={"color": muted(dark), "dash": "dot", "width": 2},
        hovertemplate="chance %{y:.3f}<extra></extra>",
    )


def _line(name: str, place: int, rows: pd.DataFrame, dark: bool) -> go.Scatter:
    rows = rows.sort_values("tokens")
    color = series_color(place, dark)
    return go.Scatter(
        x=_tokens(rows),
        y=rows["overlap"],
        name=plain(name),
        legendgroup=name,
        mode="lines+markers",
        line={"color": color, "dash": DASHES[place % len(DASHES)], "width": 2},
        marker={
            "symbol": SYMBOLS[place % len(SYMBOLS)],
            "color": color,
            "size": 9,
            "line": {"color": ink(dark), "width": 0},
        },
        hovertemplate=f"{plain(name)}, %{{x}} tokens: %{{y:.3f}}<extra></extra>",
    )
