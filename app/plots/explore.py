"""The charts of Explore and Export: table -> chart, the same on pages, in files and in reports."""

from collections.abc import Mapping, Sequence

import pandas as pd

from analysis.ranking.coverage import Blender
from analysis.ranking.effects import effects_over_models
from analysis.ranking.overlap import overlap_matrix
from app.figures import coverage as coverage_figure
from app.figures import effects as effects_figure
from app.figures import overlap_curve as curve_figure
from app.figures import overlap_matrix as matrix_figure
from app.figures import sizes as size_figure
from app.figures import stratification as separation_figures
from app.figures import variant_map as variant_figure
from app.plots.chart import Chart

# Beside the criterion in use: the simplest one, and the one that depends least on the text.
CURVE_BESIDE = ("frequency", "man")


def stratification_chart(table: pd.DataFrame, about: str) -> Chart:
    """The expert map, of a table of `maps.ranked_experts`."""
    return Chart(
        "stratification",
        lambda dark: separation_figures.stratification_figure(table, dark=dark),
        table,
        separation_figures.describe_map(table),
        about,
    )


def overlap_map_chart(
    means: pd.DataFrame, selected: tuple[int, int, int] | None, about: str
) -> Chart:
    """The 18 variants, of a table of `mean_overlaps`; `selected` is outlined."""
    return Chart(
        "overlap-map",
        lambda dark: variant_figure.variant_map(means, selected=selected, dark=dark),
        means,
        variant_figure.describe(means),
        about,
    )


def overlap_chart(pairs: pd.DataFrame, corpora: Sequence[str], about: str) -> Chart:
    """One criterion between the texts, of a table of `criterion_overlap`."""
    table, chance = overlap_matrix(pairs, list(corpora)), float(pairs["chance"].mean())
    return Chart(
        "overlap",
        lambda dark: matrix_figure.overlap_matrix(table, chance=chance, dark=dark),
        pairs,
        matrix_figure.describe(table, chance=chance),
        about,
    )


def curve_chart(table: pd.DataFrame, share: float, about: str) -> Chart:
    """Overlap against sparsity, of a table of `maps.overlap_curve`; `share` is marked."""
    return Chart(
        "overlap-by-sparsity",
        lambda dark: curve_figure.overlap_curve(table, sparsity=share, dark=dark),
        table,
        curve_figure.describe(table, sparsity=share),
        about,
    )


def effects_chart(means: Sequence[pd.DataFrame], about: str) -> Chart:
    """What each exponent does, of a table of `mean_overlaps` for each model."""
    table = effects_over_models(means)
    chance = float(pd.concat(means)["chance"].mean())
    return Chart(
        "component-effects",
        lambda dark: effects_figure.component_effects(table, chance=chance, dark=dark),
        table,
        effects_figure.describe(table),
        about,
    )


def coverage_table(blender: Blender, weights: Mapping[str, float]) -> pd.DataFrame:
    """Table `corpus, share, coverage, equal`; `weights` by corpus, in the order of the runs."""
    mixed = list(weights.values())
    return pd.DataFrame(
        {
            "corpus": list(weights),
            "share": [weight / sum(mixed) for weight in mixed],
            "coverage": blender.coverage(mixed),
            "equal": blender.coverage([1.0] * len(mixed)),
        }
    )


def coverage_chart(table: pd.DataFrame, about: str) -> Chart:
    """How much of each text's saliency is kept, of a table of `coverage_table`."""
    return Chart(
        "coverage",
        lambda dark: coverage_figure.coverage_figure(table, dark=dark),
        table,
        coverage_figure.describe(table),
        about,
    )


def separation_chart(table: pd.DataFrame, about: str) -> Chart:
    """How clear the cut is, layer by layer, of a table of `maps.separations`."""
    return Chart(
        "separation",
        lambda dark: separation_figures.separation_figure(table, dark=dark),
        table,
        separation_figures.describe(table),
        about,
    )


def sizes_chart(table: pd.DataFrame, about: str) -> Chart:
    """Bytes before and after, of the table of a `SizeReport`."""
    return Chart(
        "sizes",
        lambda dark: size_figure.sizes_figure(table, dark=dark),
        table,
        size_figure.describe(table),
        about,
    )
