"""The charts of Compare: two recipes side by side."""

from analysis.ranking.compare import Comparison
from app.charts.chart import Drawing
from app.figures import kept_by, layer_agreement, rank_rank
from pruning.planning.ranking import Selection, criterion_badge

Names = tuple[str, str]


def recipe_text(selection: Selection) -> str:
    """A recipe in a few words."""
    source = " + ".join(selection.choice.corpora) or criterion_badge(selection.criterion)
    gate = ", renormalized" if selection.request.gate != "applied" else ""
    return f"{selection.criterion.label}, {source}{gate}, {selection.request.sparsity}"


def about_recipes(first: Selection, second: Selection) -> tuple[str, ...]:
    """What the provenance of a comparison names: the model, both recipes, their runs."""
    runs = [run.manifest.run_id for each in (first, second) for run in each.choice.runs]
    return (
        f"{first.model.name} {first.model.identity[:8]}",
        f"A: {recipe_text(first)}",
        f"B: {recipe_text(second)}",
        ", ".join(dict.fromkeys(runs)),
    )


def kept_by_chart(
    comparison: Comparison, names: Names, about: str, *, marked: tuple[int, int] | None = None
) -> Drawing:
    """Who keeps what; `marked` is a (layer, expert) to point out."""
    table = comparison.table()
    return Drawing(
        "kept-by",
        lambda dark: kept_by.kept_by_map(table, names, marked=marked, dark=dark),
        table,
        kept_by.describe(table, names),
        about,
    )


def rank_rank_chart(comparison: Comparison, names: Names, about: str) -> Drawing:
    """Rank under one recipe against rank under the other."""
    table = comparison.table()
    return Drawing(
        "rank-rank",
        lambda dark: rank_rank.rank_rank(table, names, dark=dark),
        table,
        rank_rank.describe(table, comparison.kendall_tau),
        about,
    )


def agreement_chart(comparison: Comparison, about: str) -> Drawing:
    """How far both agree, layer by layer."""
    by_layer = comparison.by_layer
    return Drawing(
        "agreement",
        lambda dark: layer_agreement.layer_agreement(by_layer, dark=dark),
        by_layer,
        layer_agreement.describe(by_layer),
        about,
    )
