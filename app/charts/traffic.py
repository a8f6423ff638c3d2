"""What the plan's experts hold of traffic, beside its calibrations, and how near those are."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

import pandas as pd
import plotly.graph_objects as go

from analysis.foreign_text import in_html
from app.charts.chart import Drawing, made_by, model_fact, plan_fact
from app.charts.theme import Look, ink, muted, nth_look, paper, primary, themed, this_plan
from app.charts.traces import OVERLAP_AXIS, annotation, line_mode, padded, series, stroke
from pruning.planning.traffic_fit import TrafficFit

if TYPE_CHECKING:
    from app.loaded import Loaded

BEST: Final = "most possible"
_MOST_SHOWN: Final = 1.01  # of a share: a line at 100% has its whole width


def held_by_layer(loaded: Loaded, fit: TrafficFit, name: str, run_id: str) -> Drawing:
    """The share of routed choices that the plan's experts hold, layer by layer.

    `name` is that of the traffic, `run_id` its run. The table `of, layer, held` (0..1) has the
    traffic, the most that as many experts could hold of it, and each corpus, nearest first.
    """
    shares = [(_traffic_name(name), fit.today.layers), (BEST, fit.best)]
    shares += [(corpus, held.layers) for corpus, held in fit.corpora.items()]
    layers = [layer.index for layer in fit.sparse]
    rows = [
        (of, layer, share)
        for of, by_layer in shares
        for layer, share in zip(layers, by_layer.tolist(), strict=True)
    ]
    table = pd.DataFrame(rows, columns=["of", "layer", "held"])
    nearest = next(iter(fit.corpora), "")
    named = {corpus for corpus in fit.corpora if corpus in fit.ranked or corpus == nearest}
    figure = partial(held_figure, table, named)
    about = _about(loaded, fit, run_id)
    return Drawing(figure, table, describe(table), about, name="traffic-held")


def _traffic_name(name: str) -> str:
    return f"{name} (traffic)"


def held_figure(table: pd.DataFrame, named: set[str], *, dark: bool = False) -> go.Figure:
    """Figure of a table `of, layer, held`: traffic, the most possible, then the corpora.

    The corpora `named` have looks of their own; the others are thin lines of one colour.
    """
    groups = _groups(table)
    traffic, best, *corpora = groups
    mode = line_mode(table["layer"].nunique())
    others = [corpus for corpus in corpora if corpus not in named]
    label = "other calibrations" if len(others) > 1 else "".join(map(in_html, others))
    shows = {"name": label, "legendgroup": "others", "hoverinfo": None}
    lines = [
        stroke(*_points(groups[corpus]), muted(dark), 1, showlegend=not place, **shows).update(
            hovertemplate=f"{_reading(corpus)}<extra></extra>"
        )
        for place, corpus in enumerate(others)
    ]
    for place, corpus in enumerate(corpus for corpus in corpora if corpus in named):
        look = nth_look(place, dark)
        lines.append(series(look, corpus, _points(groups[corpus]), _reading(corpus), mode=mode))
    dashed = Look(ink(dark), "circle", "dash")
    lines.append(series(dashed, best, _points(groups[best]), _reading(best), mode="lines"))
    thick = Look(this_plan(dark), "circle", "solid")
    lines.append(series(thick, traffic, _points(groups[traffic]), _reading(traffic), mode=mode))
    return themed(
        lines,
        dark,
        x={"title": "layer", "type": "category", "nticks": 12, "showgrid": False},
        y={
            "title": "routed choices held",
            "tickformat": ".0%",
            "range": padded(table["held"], least=0.0, most=_MOST_SHOWN),
        },
        height=340,
        hovermode="x unified",
        legend={"traceorder": "reversed"},
    )


def _groups(table: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """The rows of the traffic, of the most possible, and of each corpus."""
    return {str(name): rows for name, rows in table.groupby("of", sort=False)}


def _reading(name: str) -> str:
    return f"{in_html(name)} %{{y:.1%}}"


def _points(rows: pd.DataFrame) -> tuple[pd.Series, pd.Series]:
    return rows["layer"].astype(str), rows["held"]


def describe(table: pd.DataFrame) -> str:
    """One sentence: the layer that holds least of the traffic."""
    groups = _groups(table)
    traffic, best, *_ = groups
    row = groups[traffic].sort_values("held", kind="stable").iloc[0]
    most = groups[best].set_index("layer")["held"][row["layer"]]
    return (
        f"Of {traffic}, layer {int(row['layer'])} holds least: {row['held']:.1%} of its routed "
        f"choices, where as many experts could hold {most:.1%}."
    )


def near_corpora(loaded: Loaded, fit: TrafficFit, name: str, run_id: str) -> Drawing:
    """How near each calibration corpus is to the traffic.

    That is the overlap of what frequency would remove of both, at the plan's counts: 0..1, higher
    is nearer.
    """
    table = pd.DataFrame(
        {
            "corpus": list(fit.corpora),
            "overlap": [held.overlap for held in fit.corpora.values()],
            "chance": fit.chance,
            "held": [held.whole for held in fit.corpora.values()],
            "ranked_the_plan": [corpus in fit.ranked for corpus in fit.corpora],
        }
    )
    first = table.iloc[0]
    alt = (
        f"{first['corpus']} is nearest to {_traffic_name(name)}: overlap {first['overlap']:.2f}; "
        f"two random sets share {first['chance']:.2f}."
    )
    about = _about(loaded, fit, run_id)
    return Drawing(partial(near_figure, table), table, alt, about, name="traffic-corpora")


def near_figure(table: pd.DataFrame, *, dark: bool = False) -> go.Figure:
    """Figure of a table `corpus, overlap, chance, ranked_the_plan`: a bar a corpus."""
    # Beside the bars, where the line of chance crosses no number.
    names = [in_html(corpus) for corpus in table["corpus"]]
    words = [
        f"{name} <b>{overlap:.2f}</b>"
        for name, overlap in zip(names, table["overlap"], strict=True)
    ]
    bars = go.Bar(
        x=table["overlap"],
        y=names,
        orientation="h",
        marker={"color": primary(dark)},
        customdata=[", ranked the plan" if ranked else "" for ranked in table["ranked_the_plan"]],
        hovertemplate="%{y}: overlap %{x:.3f}%{customdata}<extra></extra>",
    )
    by_chance = float(table["chance"].iloc[0])
    fig = themed(
        [bars],
        dark,
        x={**OVERLAP_AXIS, "range": [0, 1.06], "title": "overlap with the traffic"},
        y={
            "type": "category",
            "autorange": "reversed",
            "showgrid": False,
            "tickvals": names,
            "ticktext": words,
        },
        height=100 + 36 * len(table),
        bargap=0.35,
        annotations=[
            annotation(
                by_chance, 1, "chance", yref="paper", yanchor="bottom", font={"color": muted(dark)}
            )
        ],
        margin={"t": 26},
    )
    for edge, width in ((paper(dark), 5), (ink(dark), 2)):
        fig.add_vline(x=by_chance, line={"color": edge, "width": width, "dash": "dot"})
    return fig


def _about(loaded: Loaded, fit: TrafficFit, run_id: str) -> str:
    runs = [held.run.manifest.run_id for held in fit.corpora.values() if held.run]
    ids = ", ".join(dict.fromkeys([run_id, *runs]))
    return made_by(model_fact(loaded), f"plan {plan_fact(loaded)} {fit.plan.digest[:8]}", ids)
