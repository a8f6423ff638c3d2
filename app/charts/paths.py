"""Paths (MoE Pathfinder): how many samples' paths pass through each expert, by corpus."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from analysis.criteria.pathfinder import PATHFINDER
from analysis.criteria.trajectory import follow_paths, representative_samples
from analysis.errors import StatsError
from analysis.foreign_text import in_html
from analysis.ranking.choose import run_by_corpus
from analysis.stats.manifest import Run
from analysis.stats.reading import load_sample_stats
from app.charts.chart import Drawing, chart, of_corpora
from app.charts.theme import apply_theme
from app.charts.traces import Place, cells_of, heat, layer_axis, pin
from app.choices import USUAL_PATHS, PathChoice

if TYPE_CHECKING:
    from app.loaded import Loaded

_ROW, _LEAST, _MOST = 17, 110, 420
_HEAD, _FOOT = 34, 60


def path_table(run: Run, choice: PathChoice) -> pd.DataFrame:
    """Table `layer, expert, num_samples, path_weight, node_weight, rank, samples` of one run."""
    stats = load_sample_stats(run)
    if choice.clusters is not None:
        stats = representative_samples(stats, choice.clusters)
    table = follow_paths(stats, choice.count, choice.weighing).table(choice.count)
    return table.assign(samples=stats.num_samples)


def runs_with_samples(loaded: Loaded) -> dict[str, Run]:
    """The run of each corpus with sample statistics."""
    runs = run_by_corpus(loaded.study.store.of_model(loaded.model.identity, "routed"), PATHFINDER)
    return {corpus: run for corpus, run in runs.items() if "dense" in run.manifest.groups}


@chart("paths", "explore")
def draw(loaded: Loaded) -> Drawing:
    """Which experts the heaviest paths pass through."""
    runs, choice = runs_with_samples(loaded), loaded.choices.paths
    if not runs:
        raise StatsError(
            f"{loaded.model.name} has no statistics of samples; calibrate with --group dense."
        )
    tables = {corpus: loaded.study.cached(path_table, run, choice) for corpus, run in runs.items()}
    counts = {corpus: int(table["samples"].iloc[0]) for corpus, table in tables.items()}
    together = pd.concat(tables, names=["corpus"]).reset_index(level=0)
    return Drawing(
        partial(path_frequency, together, counts, marked=loaded.choices.expert),
        together,
        describe(together, counts),
        of_corpora(loaded, " ".join(choice.options())),
        options=choice.options() if choice != USUAL_PATHS else (),
    )


def path_frequency(
    table: pd.DataFrame,
    num_samples: Mapping[str, int],
    *,
    marked: Place | None = None,
    dark: bool = False,
) -> go.Figure:
    """Figure of a table `corpus, layer, expert, num_samples, rank`: a map per corpus.

    Rank 0 is kept first over all layers. `num_samples` has the samples of each corpus, in the order
    of the panels.
    """
    layers = sorted(table["layer"].unique())
    panel = int(np.clip(len(layers) * _ROW, _LEAST, _MOST))
    height = len(num_samples) * (panel + _HEAD) + _FOOT
    inner_height = height - _HEAD - _FOOT  # between the margins
    fig = make_subplots(
        rows=len(num_samples),
        cols=1,
        shared_xaxes=True,
        vertical_spacing=_HEAD / inner_height if len(num_samples) > 1 else 0,
        subplot_titles=[
            f"{in_html(corpus)}: {count} samples" for corpus, count in num_samples.items()
        ],
    )
    pins: list[dict[str, Any]] = []
    for row, (corpus, count) in enumerate(num_samples.items(), start=1):
        corpus_rows = table[table["corpus"] == corpus]
        place, shape = cells_of(corpus_rows, layers)
        # Blank if the expert is on no path or does not exist.
        shares = np.full(shape, np.nan, dtype=np.float32)
        shares[place] = (corpus_rows["num_samples"] / count).where(corpus_rows["num_samples"] > 0)
        hover_numbers = np.zeros((*shape, 2), dtype=np.uint32)
        hover_numbers[place] = np.column_stack(
            [corpus_rows["num_samples"], corpus_rows["rank"] + 1]
        )
        cells = heat(
            shares,
            "share of samples",
            dark,
            {"tickformat": ".0%"},
            customdata=hover_numbers,
            hovertemplate="layer %{y}, expert %{x}<br>on paths of %{customdata[0]} of "
            f"{count} samples<br>rank %{{customdata[1]}} of the model<extra></extra>",
        )
        fig.add_trace(cells, row, 1)
        if marked is not None and marked[0] in layers:
            axes = "" if row == 1 else str(row)
            pins += pin(marked[1], layers.index(marked[0]), dark, axes)
    apply_theme(
        fig,
        dark,
        x={"showgrid": False},
        y=layer_axis(layers, max(1, -(-len(layers) // (panel // _ROW))), title="layer"),
        height=height,
        shapes=pins,
        margin={"t": _HEAD, "b": _FOOT},
    )
    fig.update_annotations(font_size=13, x=0, xanchor="left")
    return fig.update_xaxes(title_text="expert", row=len(num_samples), col=1)


def describe(table: pd.DataFrame, num_samples: Mapping[str, int]) -> str:
    """One sentence: experts on paths of each corpus, of every corpus, of none."""
    on_paths = {
        corpus: set(zip(rows["layer"], rows["expert"], strict=True))
        for corpus, rows in table[table["num_samples"] > 0].groupby("corpus")
    }
    size = len(table) // len(num_samples)
    counts = [f"{len(on_paths.get(corpus, ()))} on {corpus}" for corpus in num_samples]
    text = f"Of {size} experts, paths pass through {', '.join(counts)}"
    if len(num_samples) == 1:
        return f"{text}."
    expert_sets = [on_paths.get(corpus, set()) for corpus in num_samples]
    every, none = len(set.intersection(*expert_sets)), size - len(set.union(*expert_sets))
    return f"{text}; {every} on every corpus and {none} on none."
