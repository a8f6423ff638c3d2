"""Stratification: the scores of each layer by rank, and whether they differ beyond chance."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import isnan, log, sqrt
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from analysis.criteria import get_criterion
from analysis.errors import CriterionError, StatsError
from analysis.foreign_text import in_html
from analysis.numbers.arrays import rescale
from analysis.ranking.overlap import kept_counts
from analysis.ranking.stratification import random_separation, relative, separation
from analysis.stats.grid import Grid
from analysis.stats.tables import WeightStats
from app.charts.chart import Drawing, chart, made_by, model_fact
from app.charts.theme import OVER_TITLES, Look, muted, series_color, themed
from app.charts.traces import (
    Place,
    annotation,
    drags,
    halo,
    heat,
    layer_axis,
    pin,
    series,
    stroke,
    takes_clicks,
    targets,
)
from app.choices import Scale
from app.tables.saliency_grid import SaliencyGrid
from pruning.planning.ranking import Ranking

if TYPE_CHECKING:
    from app.loaded import Loaded

# Scale -> its name, and what its colours compare.
SCALES: Final[Mapping[Scale, tuple[str, str]]] = {
    "rescaled": (
        "Rescaled per layer (AIMER paper)",
        "rescaled to 0..1 in each layer, as in Figure 2 of the AIMER paper",
    ),
    "relative": (
        "Relative to the layer's mean",
        "score relative to the mean of its layer, one range for all",
    ),
    "raw": ("Raw", "raw score, one range for all layers of a criterion"),
}
# What stands beside each row.
KEY: Final = (
    "Beside each layer: \u25cf spread, the largest score less the smallest; \u25c6 gap at the cut, "
    "the last expert kept less the first removed; both as shares of the layer's mean. \u25cb and "
    "\u25c7 are those of random weights: independent normal ones of the same shapes."
)
# Column, name, marker and place of its colour; the column of random weights begins with "random_".
_MEASURES: Final = (("spread", "spread", "circle", 0), ("gap", "gap at the cut", "diamond", 1))
_HOVER: Final = (
    "layer %{customdata[0]}, expert %{customdata[1]}, rank %{x}: %{customdata[2]:.5g}"
    "<extra></extra>"
)
_BETWEEN: Final = 0.07  # panels, of the width of the figure
_OF_HEAT: Final = 0.72  # of the width of a panel, the heat map; beside it, the measures
_DECADES: Final = 5  # of the axis of the measures, at most
_CLEAR: Final = 0.25  # of the axis of the measures, at its start, without a label
_ROOM: Final = 38  # pixels above the panels, for their names and colour bars
# Chance has half of the variance at sqrt(2) times its spread, and a sixteenth at 4 times.
_HARDLY, _CLEARLY = sqrt(2), 4.0


@chart("stratification", "explore")
def draw(loaded: Loaded) -> Drawing:
    """Does a criterion separate the experts of a layer?"""
    choice = loaded.choices.strata
    rankings = {
        ranking.criterion.label: ranking
        for ranking in (
            loaded.study.ranking(loaded.spec_by(get_criterion(name))) for name in choice.criteria
        )
    }
    table = pd.concat([_panel(loaded, ranking) for ranking in rankings.values()], ignore_index=True)
    figure = partial(stratification_figure, table, scale=choice.scale, marked=loaded.choices.expert)
    runs = [run.manifest.run_id for ranking in rankings.values() for run in ranking.choice.runs]
    facts = (*dict.fromkeys(runs), f"colours: {choice.scale}", f"cut: {loaded.sparsity}")
    return Drawing(
        figure,
        table,
        describe(table),
        made_by(model_fact(loaded), " beside ".join(rankings), *facts),
        options=choice.options(),
        panels={name: partial(figure, panels=[name]) for name in rankings},
    )


def _panel(loaded: Loaded, ranking: Ranking) -> pd.DataFrame:
    ranked, stats = loaded.ranked(ranking), ranking.choice.stats
    kept = _kept(loaded, ranked.grid)
    table = ranked_experts(ranked, kept, loaded.choices.strata.scale)
    if not isinstance(stats, WeightStats):
        return table.assign(random_spread=np.nan, random_gap=np.nan)
    chance = loaded.study.cached(random_separation, ranked.criterion, stats, kept)
    names = {"spread": "random_spread", "gap": "random_gap"}
    return table.merge(chance.rename(columns=names), on="layer", how="left")


def _kept(loaded: Loaded, grid: Grid) -> tuple[int, ...]:
    """Experts that the plan keeps of each layer; all of them if it removes neurons."""
    if loaded.choices.spec.by_neuron:
        return tuple(grid.counts.tolist())
    try:
        plan = loaded.shown_plan
    except (CriterionError, StatsError):  # other criteria than the plan's can have theirs
        return tuple(kept_counts(grid, loaded.fraction).tolist())
    kept = {layer: len(experts) for layer, experts in plan.kept.items()}
    return tuple(kept.get(layer.index, layer.num_experts) for layer in grid.layers)


def ranked_experts(ranked: SaliencyGrid, kept: Sequence[int], scale: Scale) -> pd.DataFrame:
    """Table `panel, layer, expert, rank, score, value, kept, spread, gap`, a row per expert.

    Rank 0 is the first to keep; `value` is the score in its scale, `kept` whether the plan's count
    of the layer keeps it, `spread` and `gap` are of its layer, see `separation`.
    """
    signed = ranked.criterion.saliency(ranked.score)
    scaled = {"rescaled": rescale, "relative": relative}
    values = scaled[scale](signed) if scale in scaled else ranked.score
    order = ranked.order
    rows, ranks = np.nonzero(order >= 0)
    experts = order[rows, ranks]
    table = pd.DataFrame(
        {
            "panel": ranked.criterion.label,
            "layer": np.array([layer.index for layer in ranked.grid.layers])[rows],
            "expert": experts,
            "rank": ranks,
            "score": ranked.score[rows, experts],
            "value": values[rows, experts],
            "kept": ranks < np.asarray(kept)[rows],
        }
    )
    return table.merge(separation(signed, ranked.grid, kept, order), on="layer")


@dataclass(frozen=True)
class _Panel:
    """A criterion of the figure: its rows and its place."""

    name: str
    rows: pd.DataFrame
    start: float  # of the width of the figure
    width: float
    number: int

    @property
    def axes(self) -> tuple[str, str]:
        """Names of the axes of the heat map and of the measures."""
        first = 2 * self.number + 1
        return f"x{first if first > 1 else ''}", f"x{first + 1}"

    @property
    def middle(self) -> float:
        """Where the heat map ends."""
        return self.start + _OF_HEAT * self.width


def stratification_figure(
    table: pd.DataFrame,
    *,
    scale: Scale = "rescaled",
    panels: Sequence[str] | None = None,
    marked: Place | None = None,
    dark: bool = False,
) -> go.Figure:
    """Figure of a table of `draw`: of each criterion a heat map and the measures of its rows.

    Rank 1 is on the left; a line marks the cut. Colours and axes are those of the whole table,
    also if `panels` names some of its criteria, which have no legend; `marked` is a (layer, expert)
    to frame.
    """
    every = [str(name) for name in table["panel"].unique()]
    layers = sorted(table["layer"].unique())
    placed = _placed(table, every if panels is None else panels)
    low, high = _measure_range(table)
    traces: list[Any] = []
    axes: dict[str, Any] = {}
    words, pins = [], []
    for panel in placed:
        traces += _heat_traces(panel, layers, table, scale, dark)
        traces += _measure_traces(panel, layers, low, dark, has_legend=panel is placed[0])
        axes |= _axes(panel, int(table["rank"].max()) + 1, (low, high), dark)
        words.append(_title(panel))
        pins += _pins(panel, layers, marked, dark)
    figure = themed(
        traces,
        dark,
        y={"title": "layer", "anchor": "free", "position": 0, **layer_axis(layers)},
        annotations=words,
        shapes=pins,
        height=int(np.clip(len(layers) * 28, 230, 520)) + 160,
        showlegend=panels is None,
        legend=OVER_TITLES | {"title": {"text": f"Colours: {SCALES[scale][1]}", "side": "top"}},
        margin={"t": _ROOM},
        dragmode=drags(len(table)),
        # Any click goes to the nearest cell's mark, however large the cell is drawn.
        hovermode="closest",
        hoverdistance=-1,
    )
    return figure.update_layout(axes)


def _placed(table: pd.DataFrame, names: Sequence[str]) -> list[_Panel]:
    width = (1 - _BETWEEN * (len(names) - 1)) / len(names)
    return [
        _Panel(name, table[table["panel"] == name], place * (width + _BETWEEN), width, place)
        for place, name in enumerate(names)
    ]


def _title(panel: _Panel) -> dict[str, Any]:
    above = {"xref": "paper", "yref": "paper", "xanchor": "left", "yanchor": "bottom"}
    return annotation(panel.start, 1, f"<b>{in_html(panel.name)}</b>", **above)


def _heat_traces(
    panel: _Panel, layers: list[int], table: pd.DataFrame, scale: Scale, dark: bool
) -> list[Any]:
    """The cells of a panel, its colour bar and its cut."""
    rows = panel.rows
    by_rank = rows.set_index(["layer", "rank"])
    values, experts, scores = (
        # Of one row a cell: nothing to average.
        by_rank[name].unstack("rank").reindex(layers)  # noqa: PD010
        for name in ("value", "expert", "score")
    )
    names = np.broadcast_to(np.array(layers)[:, None], values.shape)
    low, high = _color_range(table if scale == "relative" else rows, scale)
    # Of a raw score of which the largest go.
    first_is_low = bool(values[0].mean() < rows["value"].mean())
    cells = heat(
        values.to_numpy(np.float32),
        "",
        dark,
        _color_bar(panel, (low, high), scale),
        reversescale=first_is_low,
        zmin=low,
        zmax=high,
        x=values.columns.to_numpy() + 1,
        y=np.arange(len(layers)),
        customdata=np.stack([names, experts, scores], axis=2).astype(np.float32),
        hovertemplate=_HOVER,
    )
    over = _cut(rows, layers, dark)
    if takes_clicks(len(table)):
        cells.update(hoverinfo="skip", hovertemplate=None, customdata=None)
        over.append(_targets(rows, layers))
    return [trace.update(xaxis=panel.axes[0]) for trace in (cells, *over)]


def _targets(rows: pd.DataFrame, layers: list[int]) -> go.Scatter:
    """A mark on each cell, which a click selects."""
    return targets(
        rows["rank"].to_numpy() + 1,
        np.searchsorted(layers, rows["layer"]),
        rows[["layer", "expert", "score"]].to_numpy(np.float32),
        10,
        hovertemplate=_HOVER,
    )


def _color_bar(panel: _Panel, ends: tuple[float, float], scale: Scale) -> dict[str, Any]:
    """The colour bar above the heat map, beside the name of the panel."""
    words = {"rescaled": "{:.0f}", "raw": "{:.3g}"}.get(scale)
    return {
        "orientation": "h",
        **{"x": panel.middle, "xanchor": "right", "len": 0.4 * panel.width, "thickness": 8},
        **{"y": 1, "yanchor": "bottom", "ypad": 14, "xpad": 0},
        "tickvals": list(ends),
        "ticktext": [words.format(end) if words else signed_percent(end) for end in ends],
    }


def _color_range(rows: pd.DataFrame, scale: Scale) -> tuple[float, float]:
    if scale == "rescaled":
        return 0.0, 1.0
    values = rows["value"][np.isfinite(rows["value"])]
    low, high = float(values.min()), float(values.max())
    return low, high if high > low else low + 1


def _measure_traces(
    panel: _Panel, layers: list[int], low: float, dark: bool, *, has_legend: bool
) -> list[go.Scatter]:
    """Spread and gap of each layer, and those of random weights."""
    by_layer = panel.rows.drop_duplicates("layer").set_index("layer").reindex(layers)
    size = 8 if len(layers) <= 24 else 5
    traces = []
    for is_random in (True, False):  # marks of the model on top
        for column, words, symbol, place in _MEASURES:
            values = by_layer[f"random_{column}" if is_random else column]
            if values.isna().all():
                continue
            name = f"{words}, random weights" if is_random else words
            color = muted(dark) if is_random else series_color(place, dark)
            look = Look(color, f"{symbol}-open" if is_random else symbol, "dot")
            trace = series(
                look,
                name,
                # A gap of nothing has no place on this axis, and stands at its end.
                (values.clip(lower=low), np.arange(len(layers))),
                "%{text}",
                mode="lines+markers" if is_random else "markers",
                marker={"size": size},
                # Without data of its own: only cells choose an expert.
                text=[
                    f"layer {layer}, {name}: {rounded_percent(value)}"
                    for layer, value in values.items()
                ],
                unselected={"marker": {"opacity": 1}},
                xaxis=panel.axes[1],
                cliponaxis=False,
                legendgroup=name,
                legendrank=1000 + is_random,
                showlegend=has_legend,
            )
            traces.append(trace.update(line={"width": 1}) if is_random else trace)
    return traces


def _measure_range(table: pd.DataFrame) -> tuple[float, float]:
    """The ends of the axis of all measures; of a logarithm."""
    columns = [name for name in table if str(name).removeprefix("random_") in ("spread", "gap")]
    values = table[columns].to_numpy(np.float64)
    values = values[np.isfinite(values) & (values > 0)]
    if not values.size:
        return 0.001, 1.0
    high = 1.6 * float(values.max())
    return max(float(values.min()) / 1.6, high / 10**_DECADES), high


def _axes(panel: _Panel, width: int, ends: tuple[float, float], dark: bool) -> dict[str, Any]:
    step = next((step for step in (1, 2, 4, 8, 16, 32, 64, 128) if width / step <= 5), 256)
    powers = [10.0**power for power in range(-9, 9) if ends[0] <= 10.0**power <= ends[1]]
    # Two, far apart and clear of the last rank, for the axis is narrow on a phone.
    clear = [power for power in powers if log(power / ends[0]) >= _CLEAR * log(ends[1] / ends[0])]
    labelled = (clear or powers)[:1] + powers[-1:]
    words = [rounded_percent(power) if power in labelled else "" for power in powers]
    # As `themed` makes them, which has one axis only.
    plain = themed([], dark, x={}).layout.xaxis.to_plotly_json()
    ranks, measures = (f"xaxis{name[1:]}" for name in panel.axes)
    heading = {"font": plain["title"]["font"], "standoff": 8}
    return {
        ranks: plain
        | {
            "anchor": "y",
            "domain": [panel.start, panel.middle],
            "title": heading | {"text": "rank (1 = first to keep)"},
            "range": [0.5, width + 0.5],
            "showgrid": False,
            "tickvals": sorted({1, *range(step, width + 1, step)}),
        },
        measures: plain
        | {
            "anchor": "y",
            "domain": [panel.middle + 0.04 * panel.width, panel.start + panel.width],
            "title": heading | {"text": "of the mean"},
            "type": "log",
            "range": [float(np.log10(end)) for end in ends],
            "tickangle": 0,
            "tickvals": powers,
            "ticktext": words,
        },
    }


def _pins(
    panel: _Panel, layers: list[int], marked: Place | None, dark: bool
) -> list[dict[str, Any]]:
    if marked is None:
        return []
    rows = panel.rows[(panel.rows["layer"] == marked[0]) & (panel.rows["expert"] == marked[1])]
    place = {"xref": panel.axes[0], "yref": "y"}
    return [
        shape | place
        for rank in rows["rank"]
        for shape in pin(rank + 1, layers.index(marked[0]), dark)
    ]


def describe(table: pd.DataFrame) -> str:
    """A sentence per criterion: its median spread, against that of random weights."""
    by_layer = table.drop_duplicates(["panel", "layer"]).groupby("panel", sort=False)
    medians = by_layer[["spread", "random_spread"]].median()
    return " ".join(
        _verdict(str(name), row["spread"], row["random_spread"]) for name, row in medians.iterrows()
    )


def _verdict(name: str, spread: float, chance: float) -> str:
    if not spread:
        return f"{name} gives every expert the same score."
    words = f"{name} separates experts by {rounded_percent(spread)}"
    if isnan(chance) or not chance:
        return f"{words}."
    times = spread / chance
    judged = "here it hardly knows"
    if times >= _HARDLY:
        judged = f"{'clearly' if times >= _CLEARLY else 'weakly'}, {times:.2g} times chance"
    return f"{words}, random weights by {rounded_percent(chance)}: {judged}."


def rounded_percent(share: float) -> str:
    """A share in percent, in two digits."""
    return f"{share:.0%}" if abs(share) >= 0.1 or not np.isfinite(share) else f"{100 * share:.2g}%"


def signed_percent(share: float) -> str:
    """A share in percent, in two digits, with its sign."""
    return f"{'+' if share > 0 else ''}{rounded_percent(share)}"


def _cut(rows: pd.DataFrame, layers: list[int], dark: bool) -> list[go.Scatter]:
    """The line of the cut; nothing if nothing is pruned."""
    counts = rows.groupby("layer")["kept"].agg(["sum", "size"]).reindex(layers)
    kept, sizes = counts["sum"].to_numpy(), counts["size"].to_numpy()
    if (kept == sizes).all():
        return []
    # At the right edge of the last cell kept of each row.
    x, y = np.repeat(kept + 0.5, 2), np.repeat(np.arange(len(kept) + 1) - 0.5, 2)[1:-1]
    return [stroke(x, y, *look) for look in halo(dark)]
