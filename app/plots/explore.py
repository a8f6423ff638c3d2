"""The charts of Explore and Export: table -> chart, the same on pages, in files and in reports."""

from collections.abc import Sequence

import pandas as pd

from analysis.ranking.effects import effects_over_models
from analysis.ranking.overlap import overlap_matrix
from app.charts.chart import Drawing
from app.figures import effects as effects_figure
from app.figures import overlap_curve as curve_figure
from app.figures import overlap_matrix as matrix_figure
from app.figures import sizes as size_figure
from app.figures import variant_map as variant_figure

# Beside the criterion in use: the simplest one, and the one that depends least on the text.
CURVE_BESIDE = ("frequency", "man")


def overlap_map_chart(
    means: pd.DataFrame, selected: tuple[int, int, int] | None, about: str
) -> Drawing:
    """The 18 variants, of a table of `mean_overlaps`; `selected` is outlined."""
    return Drawing(
        "overlap-map",
        lambda dark: variant_figure.variant_map(means, selected=selected, dark=dark),
        means,
        variant_figure.describe(means),
        about,
    )


def overlap_chart(pairs: pd.DataFrame, corpora: Sequence[str], about: str) -> Drawing:
    """One criterion between the texts, of a table of `criterion_overlap`."""
    table, chance = overlap_matrix(pairs, list(corpora)), float(pairs["chance"].mean())
    return Drawing(
        "overlap",
        lambda dark: matrix_figure.overlap_matrix(table, chance=chance, dark=dark),
        pairs,
        matrix_figure.describe(table, chance=chance),
        about,
    )


def curve_chart(table: pd.DataFrame, share: float, about: str) -> Drawing:
    """Overlap against sparsity, of a table of `maps.overlap_curve`; `share` is marked."""
    return Drawing(
        "overlap-by-sparsity",
        lambda dark: curve_figure.overlap_curve(table, sparsity=share, dark=dark),
        table,
        curve_figure.describe(table, sparsity=share),
        about,
    )


def effects_chart(means: Sequence[pd.DataFrame], about: str) -> Drawing:
    """What each exponent does, of a table of `mean_overlaps` for each model."""
    table = effects_over_models(means)
    chance = float(pd.concat(means)["chance"].mean())
    return Drawing(
        "component-effects",
        lambda dark: effects_figure.component_effects(table, chance=chance, dark=dark),
        table,
        effects_figure.describe(table),
        about,
    )


def sizes_chart(table: pd.DataFrame, about: str) -> Drawing:
    """Bytes before and after, of the table of a `SizeReport`."""
    return Drawing(
        "sizes",
        lambda dark: size_figure.sizes_figure(table, dark=dark),
        table,
        size_figure.describe(table),
        about,
    )
