"""Variance of hidden states, layer by layer: the full model and what plans leave of it."""

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from app.figures.theme import DASHES, SYMBOLS, apply_theme, ink, plain, series_color

_WIDE: Final = 10.0  # a larger span between the smallest and the largest is drawn in decades


def variance_lines(table: pd.DataFrame, reference: str, *, dark: bool = False) -> go.Figure:
    """Figure of a table `candidate, layer, variance` (arXiv:2603.18492, Figure 6).

    Args:
        table: a row for each decoder layer of each candidate.
        reference: the candidate that the others are held against: thick, dotted, in ink.
        dark: for a dark page.
    """
    fig = go.Figure()
    lines = {str(name): rows for name, rows in table.groupby("candidate", sort=False)}
    whole = lines.pop(reference, None)
    for index, (name, rows) in enumerate(lines.items()):
        color = series_color(index, dark)
        look = {"color": color, "dash": DASHES[index % len(DASHES)], "width": 2}
        mark = {"symbol": SYMBOLS[index % len(SYMBOLS)], "color": color, "size": 8}
        fig.add_trace(_line(name, rows, look, mark))
    if whole is not None:
        look = {"color": ink(dark), "dash": "dot", "width": 3}
        fig.add_trace(_line(reference, whole, look, {"color": ink(dark), "size": 5}))
    apply_theme(fig, dark)
    fig.update_layout(height=400)
    fig.update_xaxes(title_text="decoder layer", showgrid=False, tickformat="d")
    fig.update_yaxes(title_text="variance of hidden states", tickformat=".3~g")
    if _spans_decades(table["variance"]):
        fig.update_yaxes(type="log", dtick=1)
    if table["layer"].nunique() <= 24:
        fig.update_xaxes(dtick=1)
    return fig


def deviations(table: pd.DataFrame, reference: str) -> pd.Series:
    """How far each candidate is from the reference, nearest first: the mean factor, at least 1.

    The exponential of the mean over layers of |ln(variance / reference's)|: twice and half of the
    reference's variance are equally far, a factor of 2. Layers where either is 0 do not count.
    """
    wide = table.pivot_table(index="layer", columns="candidate", values="variance")
    if reference not in wide:
        return pd.Series(dtype="float64")
    ratios = wide.drop(columns=reference).div(wide[reference], axis="index")
    known = ratios.where((ratios > 0) & (ratios < np.inf))
    means = known.apply(np.log).abs().mean()
    return means.apply(np.exp).sort_values(kind="stable")


def describe(table: pd.DataFrame, reference: str) -> str:
    """Who is nearest to the reference over the layers, and who is farthest."""
    found = deviations(table, reference).dropna()
    if found.empty:
        return "Nothing was measured beside the full model."
    first = f"nearest to the full model {found.index[0]}, by a factor of {found.iloc[0]:.2f}"
    if len(found) == 1:
        return f"Variance of hidden states, mean over the layers: {first}."
    return (
        f"Variance of hidden states, mean over the layers: {first}; farthest {found.index[-1]}, "
        f"{found.iloc[-1]:.2f}."
    )


def _spans_decades(values: pd.Series) -> bool:
    known = values[values > 0]
    return len(known) == len(values) > 0 and float(known.max() / known.min()) > _WIDE


def _line(
    name: str, rows: pd.DataFrame, look: Mapping[str, Any], mark: Mapping[str, Any]
) -> go.Scatter:
    return go.Scatter(
        x=rows["layer"],
        y=rows["variance"],
        name=plain(name),
        mode="lines+markers",
        line=dict(look),
        marker=dict(mark),
        hovertemplate=f"{plain(name)}, layer %{{x}}: %{{y:.4g}}<extra></extra>",
    )
