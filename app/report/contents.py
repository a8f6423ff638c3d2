"""Contents of a report, before rendering."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from analysis.criteria import get_criterion
from analysis.errors import PlanError, UserError, unknown_name
from app.charts.chart import Chart, Drawing
from app.charts.context import Context
from app.charts.listing import CHARTS
from app.charts.neuron_cut import neuron_request
from app.tables.costs import experts_text
from pruning.plan import EXPERT_GRANULARITY
from pruning.planning.choice import corpora_words
from pruning.requests.plan import PlanRequest
from pruning.sizes import format_bytes

DEFAULT_TITLE = "Pruning report"


@dataclass(frozen=True, eq=False)
class Report:
    """A report."""

    title: str  # its heading
    facts: dict[str, str]  # name -> value, of the model and the recipe
    command: str  # see `command_of`
    sections: tuple[tuple[Chart, Drawing], ...]  # the charts with their drawings
    omitted: dict[str, tuple[str, ...]]  # reason -> titles of missing figures


def views_of(names: Sequence[str], criterion: str = "") -> list[Chart]:
    """The named charts; without names, all that suit the criterion."""
    for name in names:
        if name not in CHARTS:
            raise PlanError(unknown_name("view of a report", name, CHARTS))
    ranks_neurons = bool(criterion) and get_criterion(criterion).neuron_score is not None
    every = [v for v in CHARTS.values() if ranks_neurons or v.granularity == EXPERT_GRANULARITY]
    return [CHARTS[name] for name in dict.fromkeys(names)] or every


def report_of(context: Context, views: Sequence[Chart], title: str = DEFAULT_TITLE) -> Report:
    """The report of a context; charts that cannot be drawn are listed with the reason."""
    sections: list[tuple[Chart, Drawing]] = []
    omitted: dict[str, tuple[str, ...]] = {}
    for view in views:
        try:
            sections.append((view, view.draw(context)))
        except UserError as error:
            omitted[str(error)] = (*omitted.get(str(error), ()), view.title)
    # For readers elsewhere the command names the statistics folder, not its path.
    words = shlex.split(command_of(context, views))
    for place, word in enumerate(words[:-1]):
        if word == "--stats-dir":
            words[place + 1] = Path(words[place + 1]).name
    return Report(title, _facts(context), shlex.join(words), tuple(sections), omitted)


def command_of(context: Context, views: Sequence[Chart]) -> str:
    """The command that writes the same report, or makes the same plan if there is none.

    Recipes of reports have no scope, no constraints and no schedule.
    """
    if all(view.is_of_command(context) for view in views):
        every = views_of((), context.request.criterion)
        names = [] if list(views) == every else [view.name for view in views]
        return context.both.report_command(names, "report.html")
    if context.plan.is_atomic:
        return neuron_request(context).command()
    return context.shown.plan_command(context.named) if context.shown else context.request.command()


def _facts(context: Context) -> dict[str, str]:
    model = context.model
    experts = f"{len(model.layers)} layers of {experts_text(model.layers)} experts"
    shape = f"{experts}, top-{model.layers[0].top_k}"
    return {
        "Model": model.name,
        "Identity": model.identity[:16],
        "Family": model.family.label,
        "Shape": f"{shape}, {format_bytes(model.checkpoint.nbytes)}",
        **_recipes(context),
        "Statistics": ", ".join(run.manifest.run_id for run in context.runs.values()) or "none",
    }


def _recipes(context: Context) -> dict[str, str]:
    """The recipe on screen and its baseline."""
    if context.plan.is_atomic:
        return {"Plan": _in_words(neuron_request(context), "granularity", "criterion", "corpora")}
    if context.shown is not None and context.shown.file:
        return {"Plan": f"{context.shown.file} ({context.about_plan()})"}
    if context.shown is not None and context.shown.selection is not None:
        return {"Plan": _in_words(context.shown.selection.request, "criterion", "corpora", "gate")}
    a, b = context.both.a, context.both.b
    words = ("criterion", "corpora", "gate")
    return {"Recipe": _in_words(a, *words), "Compared with": _in_words(b, *words)}


def _in_words(request: PlanRequest, *first: str) -> str:
    """A request in words: `first` in this order, then other non-default fields."""
    said = request.model_dump(mode="json", exclude={"model", "stats_dir", "revision"})
    usual = {name: field.default for name, field in type(request).model_fields.items()}
    names = [*first, *(name for name in said if name not in first and said[name] != usual[name])]
    return ", ".join(filter(None, (_word(name, said[name]) for name in names)))


def _word(name: str, value: Any) -> str:
    if isinstance(value, list):
        value = corpora_words(value) if name == "corpora" else ", ".join(map(str, value))
    bare = name in ("granularity", "criterion", "corpora", "sparsity")
    return str(value) if bare or not value else f"{name.replace('_', ' ')} {value}"
