"""Exact damage of removing each expert against a score that costs nothing, expert by expert."""

from typing import Any, Final

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from app.figures.theme import SYMBOLS, apply_theme, paper, plain, series_color

# Codes of `fate`: 2 * pruned by the damage + pruned by the proxy.
FATES: Final = ("both keep", "only the proxy prunes", "only the damage prunes", "both prune")
_COLORS: Final = (0, 1, 3, 4)


def damage_proxy(table: pd.DataFrame, *, proxy: str = "proxy", dark: bool = False) -> go.Figure:
    """Figure of a table `layer, expert, damage, proxy, fate`: a point an expert, both axes log.

    Experts whose damage or proxy is 0, such as those that no token reached, have no place there
    and are counted below the axis.
    """
    shown = table[(table["damage"] > 0) & (table["proxy"] > 0)]
    fig = go.Figure()
    for code, fate in enumerate(FATES):
        rows = shown[shown["fate"] == fate]
        fig.add_trace(
            go.Scatter(
                x=rows["proxy"].to_numpy(np.float32),
                y=rows["damage"].to_numpy(np.float32),
                customdata=rows[["layer", "expert"]].to_numpy(np.uint16),
                name=f"{fate}: {int((table['fate'] == fate).sum()):,}",
                mode="markers",
                marker={
                    "symbol": SYMBOLS[code],
                    "color": series_color(_COLORS[code], dark),
                    "size": 7,
                    "line": {"color": paper(dark), "width": 0.5},
                },
                hovertemplate=(
                    "layer %{customdata[0]}, expert %{customdata[1]}<br>"
                    f"{plain(proxy)} %{{x:.4g}}, damage %{{y:.4g}}<extra></extra>"
                ),
            )
        )
    apply_theme(fig, dark)
    fig.update_layout(height=420, margin={"t": 60})
    missing = len(table) - len(shown)
    experts = "1 expert" if missing == 1 else f"{missing} experts"
    note = f" (not drawn: {experts} at 0)" if missing else ""
    fig.update_xaxes(title_text=f"saliency by {plain(proxy)}{note}", **_log_ticks(shown["proxy"]))
    fig.update_yaxes(title_text="exact damage, summed over tokens", **_log_ticks(shown["damage"]))
    return fig


def describe(table: pd.DataFrame, *, proxy: str = "proxy") -> str:
    """One sentence: on how many experts the proxy decides as the exact damage does."""
    alike = int(table["fate"].isin((FATES[0], FATES[3])).sum())
    return (
        f"{proxy} and the exact damage decide alike on {alike} of {len(table)} experts "
        f"({alike / len(table):.0%})."
    )


def _log_ticks(values: "pd.Series[float]") -> dict[str, Any]:
    """A log axis with a tick for each power of ten, where there are several."""
    decades = float(np.log10(values.max() / values.min())) if len(values) else 0.0
    return {"type": "log", "exponentformat": "power", "dtick": 1 if decades > 2 else None}
