"""Overlap maps of the 18 variants as small multiples: a column per sparsity, a row per model."""

import math
from collections.abc import Mapping, Sequence
from fractions import Fraction
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from analysis.ranking.overlap import above_chance, variant_means
from analysis.stats.tables import ExpertStats, Gate
from app.charts.chart import Drawing, chart
from app.charts.context import Context
from app.charts.overlap_map import (
    EXPONENTS,
    Variant,
    clicked_point,
    nearest_to,
    number_color,
    overlaps_of,
    reading,
    variant_label,
)
from app.charts.theme import apply_theme, colorbar, colorscale, ink, plain
from app.charts.traces import ABOVE_CHANCE, around, note, stroke, targets

GRID_PERCENTS = (25, 50, 75)


def grid_table(
    models: Mapping[str, Mapping[str, ExpertStats]], gate: Gate, sparsities: Sequence[Fraction]
) -> pd.DataFrame:
    """Table `model, sparsity, criterion, b, alpha, beta, overlap, chance`: mean over pairs.

    `models` are the statistics by corpus of each model; each sparsity is a panel.
    """
    tables = [
        variant_means(stats, gate, sparsity).assign(model=model, sparsity=float(sparsity))
        for model, stats in models.items()
        for sparsity in sparsities
    ]
    table = pd.concat(tables, ignore_index=True)
    return table[["model", "sparsity", *table.columns.drop(["model", "sparsity"])]]


@chart("overlap-maps", "explore")
def draw(context: Context) -> Drawing:
    """The variants at several sparsities."""
    shares = sorted({*(Fraction(percent, 100) for percent in GRID_PERCENTS), context.fraction})
    table = context.keep(grid_table, context.models_stats, context.gate, shares)
    selected = context.ranking_criterion.exponents
    about = context.about(f"gate {context.gate}", *context.models_said)
    pruned = {float(share): context.removed_at(share) for share in shares}
    figure = partial(variant_grid, table, selected=selected)
    return Drawing(figure, table, describe(table, pruned), about)


def variant_grid(
    table: pd.DataFrame, *, selected: Variant | None = None, dark: bool = False
) -> go.Figure:
    """Figure of a table `model, sparsity, b, alpha, beta, overlap, chance`: 3 x 6 cells a panel.

    `overlap` is the mean over pairs of corpora, 0..1, `chance` that of random sets; colours are of
    `above_chance`, so that panels of different sparsities compare. `sparsity` is a share. Each cell
    carries an invisible marker, for Streamlit selects points and no cells; its customdata is
    [b, alpha, beta, percent].
    """
    models, sparsities = list(dict.fromkeys(table["model"])), sorted(table["sparsity"].unique())
    panels = [(model, sparsity) for model in models for sparsity in sparsities]
    by_chance = table.groupby(["model", "sparsity"])["chance"].mean()
    fig = make_subplots(
        len(models),
        len(sparsities),
        shared_xaxes=True,
        shared_yaxes=True,
        horizontal_spacing=0.02,
        vertical_spacing=0.22 / len(models),
        subplot_titles=[
            f"{plain(model) + ', ' if len(models) > 1 else ''}{sparsity:.0%} pruned, "
            f"chance {by_chance[model, sparsity]:.2f}"
            for model, sparsity in panels
        ],
    )
    fig.update_annotations(font={"size": 14})
    words = list(fig.layout.annotations)
    for place, (model, sparsity) in enumerate(panels):
        here = table[(table["model"] == model) & (table["sparsity"] == sparsity)]
        overlaps = overlaps_of(here)
        row, column = divmod(place, len(sparsities))
        chance = float(by_chance[model, sparsity])
        for trace in _panel(overlaps, chance, round(100 * sparsity), selected, dark):
            fig.add_trace(trace, row=row + 1, col=column + 1)
        words += _words(overlaps, chance, place + 1, dark)
    # All at once: plotly revalidates every annotation with each added one.
    fig.layout.annotations = words
    common = {"showgrid": False, "fixedrange": True}
    betas = [f"\u03b2={beta}" for _ in (0, 1) for beta in EXPONENTS]
    # Sum on the left, mean on the right: b is labelled under the middle of its three columns.
    betas[1], betas[4] = f"{betas[1]}<br>b=0", f"{betas[4]}<br>b=1"
    columns = {"tickvals": list(range(6)), "ticktext": betas, "range": [-0.55, 5.55]}
    alphas = [f"\u03b1={alpha}" for alpha in EXPONENTS]
    apply_theme(
        fig,
        dark,
        x=common | columns | {"showticklabels": False},
        y=common | {"tickvals": list(EXPONENTS), "ticktext": alphas, "range": [2.55, -0.55]},
        height=190 * len(models) + 80,
        margin={"t": 34},
        hovermode="closest",
        hoverdistance=-1,
        coloraxis={
            "cmin": 0,
            "cmax": 1,
            "colorscale": colorscale(),
            "colorbar": colorbar("overlap above chance", dark, **ABOVE_CHANCE),
        },
    )
    return fig.update_xaxes(showticklabels=True, row=len(models))


def clicked_cell(event: object) -> tuple[Variant, int] | None:
    """The variant and the percentage in a selection of `st.plotly_chart`; None if not valid."""
    found = clicked_point(event, 4)
    return (found[0], found[1][0]) if found and 0 <= found[1][0] <= 100 else None


def describe(table: pd.DataFrame, pruned: Mapping[float, int]) -> str:
    """One sentence: the least corpus-dependent variant at each sparsity.

    `pruned` is the number of pruned experts at each sparsity.
    """
    keys = ["sparsity", "b", "alpha", "beta"]
    means = table.groupby(keys, as_index=False)[["overlap"]].mean()
    parts = []
    for sparsity, rows in means.groupby("sparsity"):
        overlaps = {variant: each for variant, each in overlaps_of(rows).items() if each >= 0}
        best = max(overlaps, key=lambda variant: overlaps[variant])
        near = nearest_to(best, overlaps, pruned[float(str(sparsity))])
        parts.append(f"{sparsity:.0%} {variant_label(best)} ({overlaps[best]:.2f}{near})")
    return "Least dependent on the corpus, by sparsity: " + "; ".join(parts) + "."


def _place(variant: Variant) -> tuple[int, int]:
    """Column and row of a variant."""
    b, alpha, beta = variant
    return b * 3 + beta, alpha


def _panel(
    overlaps: Mapping[Variant, float],
    by_chance: float,
    percent: int,
    selected: Variant | None,
    dark: bool,
) -> list[go.Heatmap | go.Scatter]:
    grid = np.full((3, 6), np.nan)
    for variant, overlap in overlaps.items():
        column, row = _place(variant)
        grid[row, column] = overlap
    cells = go.Heatmap(
        z=above_chance(grid, by_chance).astype(np.float32),
        coloraxis="coloraxis",
        xgap=1,
        ygap=1,
        hoverinfo="skip",
        hoverongaps=False,
    )
    by_row = sorted(overlaps, key=lambda variant: _place(variant)[::-1])
    marks = targets(
        [_place(variant)[0] for variant in by_row],
        [_place(variant)[1] for variant in by_row],
        [[*variant, percent] for variant in by_row],
        24,
        hovertext=[reading(variant, overlaps[variant], by_chance) for variant in by_row],
        hovertemplate="%{hovertext}<extra></extra>",
    )
    outline = [] if selected is None else [stroke(*around(*_place(selected), 0.46), ink(dark), 3)]
    return [cells, marks, *outline]


def _words(
    overlaps: Mapping[Variant, float], by_chance: float, panel: int, dark: bool
) -> list[dict[str, Any]]:
    """The numbers in the cells: not trace text, which fades on selection."""
    axis = "" if panel == 1 else str(panel)
    return [
        note(
            *_place(variant),
            "N/A" if math.isnan(overlap) else f"{overlap:.2f}",
            xref=f"x{axis}",
            yref=f"y{axis}",
            font={"color": number_color(overlap, by_chance, dark), "size": 12},
        )
        for variant, overlap in overlaps.items()
    ]
