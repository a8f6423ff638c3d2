"""Component effects: mean overlap of the variants that share a value of b, alpha or beta."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

import pandas as pd
import plotly.graph_objects as go

from analysis.ranking.overlap import effects_over_models, too_near, variant_means
from app.charts.chart import Drawing, chart, models_fact, of_corpora
from app.charts.theme import ink, muted, nth_look, themed
from app.charts.traces import OVERLAP_AXIS, series, stroke

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from analysis.stats.tables import ExpertStats
    from app.loaded import Loaded

_RANGE: Final = "least to most of the variants with the value"
_GREEK: Final = {"b": "b", "alpha": "\u03b1", "beta": "\u03b2"}


@chart("component-effects", "explore")
def draw(loaded: Loaded) -> Drawing:
    """What each exponent does."""
    means = [
        loaded.study.cached(variant_means, stats, loaded.choices.gate, loaded.fraction)
        for stats in _stats_of_models(loaded)
    ]
    table, by_chance = effects_over_models(means), float(pd.concat(means)["chance"].mean())
    figure = partial(effects_figure, table, chance=by_chance)
    about = of_corpora(loaded, f"gate {loaded.choices.gate}", *models_fact(loaded))
    return Drawing(figure, table, describe(table, loaded.removed_at(loaded.fraction)), about)


def _stats_of_models(loaded: Loaded) -> Iterator[Mapping[str, ExpertStats]]:
    """Statistics by corpus of the compared models, else of this one."""
    if not loaded.models:
        yield loaded.corpora_stats
        return
    for runs in loaded.models.values():
        yield {corpus: loaded.study.stats_of(run) for corpus, run in runs.items()}


def effects_figure(table: pd.DataFrame, *, chance: float, dark: bool = False) -> go.Figure:
    """Figure of a table `component, value, overlap, lowest, highest`: mean and range of a value."""
    ranges: tuple[list[str | None], list[float | None]] = ([], [])
    marks = []
    for index, (component, rows) in enumerate(table.groupby("component", sort=False)):
        values = [f"{_GREEK[str(component)]} = {value}" for value in rows["value"]]
        for value, low, high in zip(values, rows["lowest"], rows["highest"], strict=True):
            ranges[0].extend((value, value, None))
            ranges[1].extend((low, high, None))
        # No connecting line: it would cross the numbers next to the marks.
        marks.append(
            series(
                nth_look(index, dark),
                str(component),
                (values, rows["overlap"]),
                "%{x}: mean %{y:.3f}, %{customdata[0]:.3f} to %{customdata[1]:.3f}",
                mode="markers+text",
                text=[f"   {overlap:.2f}" for overlap in rows["overlap"]],
                textposition="middle right",
                textfont={"color": ink(dark)},
                marker={"size": 12},
                customdata=rows[["lowest", "highest"]],
                showlegend=False,
            )
        )
    # A broad band without caps: it is not a confidence interval.
    look = {"name": _RANGE, "opacity": 0.3, "showlegend": True}
    marks.insert(0, stroke(*ranges, muted(dark), 10, **look))
    fig = themed(
        marks,
        dark,
        # Room for the number right of the last mark.
        x={"type": "category", "showgrid": False, "range": [-0.6, len(table) - 0.2]},
        y=OVERLAP_AXIS | {"title": "overlap of pruned sets"},
        height=320,
        margin={"r": 24},
    )
    return fig.add_hline(
        y=chance,
        line={"color": muted(dark), "dash": "dot", "width": 2},
        annotation={"text": f"chance {chance:.2f}", "font": {"color": ink(dark)}},
        annotation_position="bottom left",
    )


def describe(table: pd.DataFrame, pruned: int) -> str:
    """One sentence: the least corpus-dependent value of each exponent, of `pruned` experts."""
    parts = []
    for component, rows in table.groupby("component", sort=False):
        best = rows.sort_values("overlap", ascending=False, kind="stable").iloc[0]
        least, most = rows["overlap"].min(), rows["overlap"].max()
        if too_near(least, most, pruned):
            parts.append(f"{component} at any value (too close to call)")
        else:
            parts.append(f"{component} = {int(best['value'])} (+{most - least:.2f} over the least)")
    return "Most overlap between corpora with " + ", ".join(parts) + "."
