"""Candidates of the same size: what each loses on each text, neurons beside whole experts."""

from collections.abc import Mapping
from typing import Any, Final

import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from app.figures.theme import apply_theme, muted, plain, series_color

WORDS: Final = {"atomic": "neurons", "expert": "whole experts"}
CLAIMED: Final = "HEAPr, neurons all layers"
_LOOKS = {"atomic": (0, "circle"), "expert": (1, "square")}


def same_bytes(table: pd.DataFrame, *, dark: bool = False) -> go.Figure:
    """Figure of a table of `app.plots.neuron_evidence.SAME_BYTES_COLUMNS`: a panel for each text.

    A row a candidate, the least loss on top by the mean over texts; neurons are circles, whole
    experts squares; the line at 0 is the full model.
    """
    texts = table["corpus"].unique().tolist()
    order = table.groupby("candidate", sort=False)["change"].mean().sort_values().index.tolist()
    fig = make_subplots(
        1,
        len(texts),
        shared_yaxes=True,
        horizontal_spacing=0.03,
        subplot_titles=[plain(str(text)) for text in texts],
    )
    for column, text in enumerate(texts, 1):
        for granularity, (color, symbol) in _LOOKS.items():
            part = table[(table["corpus"] == text) & (table["granularity"] == granularity)]
            points = _points(part, granularity, series_color(color, dark), symbol)
            points.showlegend = column == 1
            fig.add_trace(points, row=1, col=column)
        fig.add_vline(x=0, line={"color": muted(dark), "width": 1.5}, row=1, col=column)
    apply_theme(fig, dark)
    fig.update_layout(height=140 + 26 * len(order), legend={"y": 1.1}, margin={"t": 70})
    fig.update_xaxes(title_text="loss change, nats", rangemode="tozero")
    fig.update_yaxes(
        type="category",
        categoryorder="array",
        categoryarray=[plain(name) for name in order],
        range=[len(order) - 0.5, -0.5],
    )
    return fig


def _points(part: pd.DataFrame, granularity: str, color: str, symbol: str) -> go.Scatter:
    return go.Scatter(
        x=part["change"],
        y=[plain(name) for name in part["candidate"]],
        name=WORDS[granularity],
        legendgroup=granularity,
        mode="markers",
        cliponaxis=False,
        marker={"symbol": symbol, "size": 11, "color": color},
        customdata=part[["loss", "full", "bytes"]],
        hovertemplate="%{y}<br>loss %{customdata[0]:.4f}, full model %{customdata[1]:.4f}: "
        "%{x:+.4f}<br>%{customdata[2]:,} bytes<extra></extra>",
    )


def describe(table: pd.DataFrame) -> str:
    """Who loses least where, in one sentence; then each text; then HEAPr against the baselines.

    Args:
        table: of `SAME_BYTES_COLUMNS`, all of about the same size.
    """
    texts = {str(text): rows for text, rows in table.groupby("corpus", sort=False)}
    won: dict[str, list[str]] = {}
    for text, rows in texts.items():
        won.setdefault(_best(rows)["candidate"], []).append(text)
    sentences = [
        f"With {table['removed'].iloc[0]:.1%} of the expert weights gone, at the same bytes, "
        + "; ".join(f"{name} loses least on {_joined(where)}" for name, where in won.items())
        + "."
    ]
    sentences += [_of_text(text, rows) for text, rows in texts.items()]
    if claim := _claim(texts):
        sentences.append(claim)
    return " ".join(sentences)


def _joined(names: list[str]) -> str:
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))


def _best(rows: pd.DataFrame) -> "pd.Series[Any]":
    return rows.sort_values("change", kind="stable").iloc[0]


def _claim(texts: Mapping[str, pd.DataFrame]) -> str:
    """What HEAPr's paper says, as measured: neurons of all layers against whole experts."""
    held, beaten = 0, 0
    for rows in texts.values():
        own = rows.loc[rows["candidate"] == CLAIMED, "change"]
        others = rows.loc[rows["granularity"] == "expert", "change"]
        if len(own) and len(others):
            held += 1
            beaten += bool(own.iloc[0] < others.min())
    if not held:
        return ""
    texts_word = "text" if held == 1 else "texts"
    return (
        f"{CLAIMED} (HEAPr-G) loses less than every plan of whole experts here on {beaten} of "
        f"{held} {texts_word}."
    )


def _of_text(text: str, rows: pd.DataFrame) -> str:
    ordered = rows.sort_values("change", kind="stable")
    best = ordered.iloc[0]
    sentence = f"{text}: {best['candidate']} {best['change']:+.3f} nats"
    if len(ordered) > 1:
        second = ordered.iloc[1]
        sentence += f", next {second['candidate']} {second['change']:+.3f}"
        if best["esap_low"] <= second["esap_high"] and second["esap_low"] <= best["esap_high"]:
            sentence += " (too near to tell apart)"
    others = ordered[ordered["granularity"] != best["granularity"]]
    if not others.empty:
        other = others.iloc[0]
        kind = WORDS[str(other["granularity"])]
        sentence += f", best of {kind} {other['candidate']} {other['change']:+.3f}"
    return sentence + "."
