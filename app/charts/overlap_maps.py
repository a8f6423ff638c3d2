"""Overlap maps of the 18 variants as small multiples: a column a sparsity, a row a model."""

import math
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any, Final

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from numpy.typing import NDArray
from plotly.subplots import make_subplots

from analysis.ranking.overlap import mean_overlaps, variant_overlaps
from analysis.stats.tables import ExpertStats, Gate
from app.charts.chart import Chart, Drawing
from app.charts.context import Context
from app.charts.overlap_map import DEGENERATE, Variant, variant_label
from app.charts.theme import apply_theme, color_at, colorbar, colorscale, ink, plain, text_on

_EXPONENTS: Final = (0, 1, 2)
_ROW_PIXELS: Final = 190


GRID_PERCENTS = (25, 50, 75)


def grid_table(
    models: Mapping[str, Mapping[str, ExpertStats]], gate: Gate, sparsities: Sequence[Fraction]
) -> pd.DataFrame:
    """Table `model, sparsity, criterion, b, alpha, beta, overlap, chance`: mean over pairs.

    Args:
        models: by name of the model, its statistics by corpus.
        gate: gate convention.
        sparsities: a panel each.
    """
    tables = [
        mean_overlaps(variant_overlaps(stats, gate, sparsity)).assign(
            model=model, sparsity=float(sparsity)
        )
        for model, stats in models.items()
        for sparsity in sparsities
    ]
    table = pd.concat(tables, ignore_index=True)
    return table[["model", "sparsity", *table.columns.drop(["model", "sparsity"])]]


def _draw(context: Context) -> Drawing:
    shares = sorted({*(Fraction(percent, 100) for percent in GRID_PERCENTS), context.fraction})
    table = context.keep(grid_table, context.models_stats, context.gate, shares)
    selected = context.ranking_criterion.exponents
    return Drawing(
        "overlap-maps",
        lambda dark: variant_grid(table, selected=selected, dark=dark),
        table,
        describe(table),
        context.about(f"gate {context.gate}", *context.models_said),
    )


OVERLAP_MAPS = Chart("overlap-maps", "explore", "The variants at several sparsities", _draw)


def variant_grid(
    table: pd.DataFrame, *, selected: Variant | None = None, dark: bool = False
) -> go.Figure:
    """Figure of a table `model, sparsity, b, alpha, beta, overlap`: 3 rows x 6 columns a panel.

    `overlap` is the mean over pairs of texts, 0..1; `sparsity` a share. Each cell carries an
    invisible marker, for Streamlit selects points and no cells; its customdata is
    [b, alpha, beta, percent].
    """
    models, sparsities = list(dict.fromkeys(table["model"])), sorted(table["sparsity"].unique())
    panels = [(model, sparsity) for model in models for sparsity in sparsities]
    fig = make_subplots(
        len(models),
        len(sparsities),
        shared_xaxes=True,
        shared_yaxes=True,
        horizontal_spacing=0.02,
        vertical_spacing=0.22 / len(models),
        subplot_titles=[_title(*panel, named=len(models) > 1) for panel in panels],
    )
    fig.update_annotations(font={"size": 14})
    words = list(fig.layout.annotations)
    for place, (model, sparsity) in enumerate(panels):
        here = table[(table["model"] == model) & (table["sparsity"] == sparsity)]
        overlaps = _overlaps(here)
        row, column = divmod(place, len(sparsities))
        for trace in _panel(overlaps, round(100 * sparsity), selected, dark):
            fig.add_trace(trace, row=row + 1, col=column + 1)
        words += _words(overlaps, place + 1, dark)
    # Given all at once: plotly validates every annotation again with each one that is added.
    fig.layout.annotations = words
    return _lay_out(apply_theme(fig, dark), len(models), dark)


def clicked_cell(event: object) -> tuple[Variant, int] | None:
    """The variant and the percentage in a selection of `st.plotly_chart`; None if not valid."""
    try:
        point = event["selection"]["points"][-1]["customdata"]  # type: ignore[index]
        b, alpha, beta, percent = (int(part) for part in point)
    except (KeyError, IndexError, TypeError, ValueError):
        return None
    is_variant = b in (0, 1) and alpha in _EXPONENTS and beta in _EXPONENTS
    return ((b, alpha, beta), percent) if is_variant and 0 <= percent <= 100 else None


def describe(table: pd.DataFrame) -> str:
    """One sentence: at each sparsity the variant that depends on the text least."""
    means = table.groupby(["sparsity", "b", "alpha", "beta"], as_index=False)["overlap"].mean()
    parts = []
    for sparsity, rows in means.groupby("sparsity"):
        best = rows.loc[rows["overlap"].idxmax()]
        variant = (int(best["b"]), int(best["alpha"]), int(best["beta"]))
        name = variant_label(variant)
        parts.append(f"{sparsity:.0%} {name} ({best['overlap']:.2f})")
    return "Least dependent on the text, by share pruned: " + "; ".join(parts) + "."


def _overlaps(here: pd.DataFrame) -> NDArray[np.float32]:
    """(alpha, b and beta); NaN where nothing can be ranked."""
    overlaps = np.full((3, 6), np.nan, dtype=np.float32)
    overlaps[here["alpha"], here["b"] * 3 + here["beta"]] = here["overlap"]
    b, alpha, beta = DEGENERATE
    overlaps[alpha, b * 3 + beta] = np.nan
    return overlaps


def _panel(
    overlaps: NDArray[np.float32], percent: int, selected: Variant | None, dark: bool
) -> list[go.Heatmap | go.Scatter]:
    cells = go.Heatmap(
        z=overlaps,
        coloraxis="coloraxis",
        xgap=1,
        ygap=1,
        hoverinfo="skip",
        hoverongaps=False,
    )
    traces = [cells, _targets(overlaps, percent)]
    return traces if selected is None else [*traces, _outline(selected, dark)]


def _targets(overlaps: NDArray[np.float32], percent: int) -> go.Scatter:
    places = [(alpha, column) for alpha in range(3) for column in range(6)]
    variants = [(column // 3, alpha, column % 3) for alpha, column in places]
    values = [float(overlaps[place]) for place in places]
    invisible = {"marker": {"opacity": 0}}
    return go.Scatter(
        x=[column for _, column in places],
        y=[alpha for alpha, _ in places],
        customdata=[[*variant, percent] for variant in variants],
        hovertext=[_reading(*each) for each in zip(variants, values, strict=True)],
        mode="markers",
        marker={"symbol": "square", "size": 24, "opacity": 0},
        selected=invisible,
        unselected=invisible,
        hovertemplate="%{hovertext}<extra></extra>",
        showlegend=False,
    )


def _words(overlaps: NDArray[np.float32], panel: int, dark: bool) -> list[dict[str, Any]]:
    """The numbers in the cells: no text of a trace, which would fade when one is selected."""
    axis = "" if panel == 1 else str(panel)
    return [
        {
            "x": column,
            "y": alpha,
            "xref": f"x{axis}",
            "yref": f"y{axis}",
            "text": "N/A" if math.isnan(overlap) else f"{overlap:.2f}",
            "font": {
                "color": ink(dark) if math.isnan(overlap) else text_on(color_at(float(overlap))),
                "size": 12,
            },
            "showarrow": False,
        }
        for (alpha, column), overlap in np.ndenumerate(overlaps)
    ]


def _reading(variant: Variant, overlap: float) -> str:
    name = variant_label(variant)
    if variant == DEGENERATE:
        return f"{name}: the same score for every expert"
    return f"{name}: " + ("no data" if math.isnan(overlap) else f"overlap {overlap:.3f}")


def _outline(variant: Variant, dark: bool) -> go.Scatter:
    b, alpha, beta = variant
    x, y = b * 3 + beta, alpha
    return go.Scatter(
        x=[x - 0.46, x + 0.46, x + 0.46, x - 0.46, x - 0.46],
        y=[y - 0.46, y - 0.46, y + 0.46, y + 0.46, y - 0.46],
        mode="lines",
        line={"color": ink(dark), "width": 3},
        hoverinfo="skip",
        showlegend=False,
    )


def _title(model: str, sparsity: float, *, named: bool) -> str:
    return f"{plain(model) + ', ' if named else ''}{sparsity:.0%} pruned"


def _lay_out(fig: go.Figure, num_rows: int, dark: bool) -> go.Figure:
    fig.update_layout(
        height=_ROW_PIXELS * num_rows + 80,
        margin={"t": 34},
        hovermode="closest",
        hoverdistance=-1,
        coloraxis={
            "cmin": 0,
            "cmax": 1,
            "colorscale": colorscale(),
            "colorbar": colorbar("overlap", dark, tickvals=[0, 0.5, 1]),
        },
    )
    common: dict[str, Any] = {"showgrid": False, "fixedrange": True}
    betas = [f"\u03b2={beta}" for _ in (0, 1) for beta in _EXPONENTS]
    # The sum stands left, the mean right: b is named under the middle of its three columns.
    betas[1], betas[4] = f"{betas[1]}<br>b=0", f"{betas[4]}<br>b=1"
    fig.update_xaxes(tickvals=list(range(6)), ticktext=betas, range=[-0.55, 5.55], **common)
    alphas = [f"\u03b1={alpha}" for alpha in _EXPONENTS]
    fig.update_yaxes(tickvals=list(_EXPONENTS), ticktext=alphas, range=[2.55, -0.55], **common)
    fig.update_xaxes(showticklabels=False)
    fig.update_xaxes(showticklabels=True, row=num_rows)
    return fig
