"""What a plan costs on each corpus, calibrated on one of them or on a blend."""

from collections.abc import Mapping
from functools import partial
from typing import Any

import pandas as pd
import plotly.graph_objects as go

from analysis.foreign_text import in_html
from app.charts.chart import Drawing
from app.charts.theme import nth_look, themed, this_plan
from app.charts.traces import signed


def corpus_losses(changes: Mapping[str, Mapping[str, float]], marked: str, about: str) -> Drawing:
    """Bars of one calibration, and a mark for each other one.

    `changes`: calibration -> corpus -> loss increase in nats per token, lower is better; `marked`
    is the calibration of the bars.
    """
    rows = [(name, *entry) for name, change in changes.items() for entry in change.items()]
    table = pd.DataFrame(rows, columns=["calibrated_on", "corpus", "change"])
    worst = table.sort_values("change", kind="stable").iloc[-1]
    alt = (
        f"Calibrated on {worst['calibrated_on']} the loss on {worst['corpus']} grows most "
        f"({worst['change']:+z.2f})."
    )
    figure = partial(losses_figure, table, marked)
    return Drawing(figure, table, alt, about, name="corpus-losses")


def losses_figure(table: pd.DataFrame, marked: str, *, dark: bool = False) -> go.Figure:
    """Figure of a table `calibrated_on, corpus, change`; see `corpus_losses`."""
    traces: list[go.Bar | go.Scatter] = []
    ticks: dict[str, Any] = {}
    for place, (name, rows) in enumerate(table.groupby("calibrated_on", sort=False)):
        # Without the second colour, which is near that of the bars.
        look, label = nth_look(place + (place > 0), dark), in_html(str(name))
        same = {
            "x": [in_html(corpus) for corpus in rows["corpus"]],
            "y": signed(rows["change"], 3),
            "name": f"calibrated on {label}",
            "hovertemplate": f"calibrated on {label}<br>%{{x}}: %{{y:+.3f}}<extra></extra>",
        }
        if name == marked:
            # Below the bars, where no mark covers it.
            words = [
                f"{in_html(corpus)} <b>{change:+z.2f}</b>"
                for corpus, change in rows[["corpus", "change"]].to_numpy()
            ]
            ticks = {"tickvals": same["x"], "ticktext": words}
            traces.insert(0, go.Bar(**same, width=0.5, marker={"color": this_plan(dark)}))
        else:
            mark = {"symbol": look.symbol, "size": 14, "color": look.color}
            traces.append(go.Scatter(**same, mode="markers", marker=mark))
    low, high = min(0.0, table["change"].min()), table["change"].max()
    return themed(
        traces,
        dark,
        x={"type": "category", "showgrid": False, **ticks},
        y={
            "title": "loss increase, nats per token",
            "range": [1.1 * low, 1.12 * high or 1],
            "zeroline": True,
        },
        height=420,
    )
