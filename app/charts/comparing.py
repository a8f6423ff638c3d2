"""Two recipes in words."""

from typing import TYPE_CHECKING

from pruning.planning.ranking import Selection, criterion_badge

if TYPE_CHECKING:
    from app.charts.context import Context


def recipe_text(selection: Selection) -> str:
    """A recipe in a few words."""
    source = " + ".join(selection.choice.corpora) or criterion_badge(selection.criterion)
    gate = ", renormalized" if selection.request.gate != "applied" else ""
    return f"{selection.criterion.label}, {source}{gate}, {selection.request.sparsity}"


def names_of(context: "Context") -> tuple[str, str]:
    """Both recipes in words."""
    return recipe_text(context.first), recipe_text(context.second)


def about_recipes(first: Selection, second: Selection) -> tuple[str, ...]:
    """What the provenance of a comparison names: the model, both recipes, their runs."""
    runs = [run.manifest.run_id for each in (first, second) for run in each.choice.runs]
    return (
        f"{first.model.name} {first.model.identity[:8]}",
        f"A: {recipe_text(first)}",
        f"B: {recipe_text(second)}",
        ", ".join(dict.fromkeys(runs)),
    )
