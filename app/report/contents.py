"""What a report holds, before it is written as a page."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import pandas as pd
import plotly.graph_objects as go

from analysis.criteria import get_criterion
from analysis.errors import PlanError, UserError, unknown_name
from app.charts.chart import Chart, made_by
from app.charts.context import Context
from app.charts.listing import CHARTS
from app.tables.shapes import experts_text
from pruning.plan import EXPERT_GRANULARITY
from pruning.sizes import format_bytes

DEFAULT_TITLE = "Pruning report"


@dataclass(frozen=True, eq=False)
class Section:
    """One figure of a report.

    Args:
        name: of the view; the stem of its CSV.
        title: what the figure answers.
        takeaway: what it says, in one sentence computed from the numbers.
        figure: on white, with its provenance.
        table: the numbers behind it.
    """

    name: str
    title: str
    takeaway: str
    figure: go.Figure
    table: pd.DataFrame


@dataclass(frozen=True, eq=False)
class Report:
    """A report.

    Args:
        title: its heading.
        facts: name -> value, of the model and the recipe.
        command: the command line that writes the same report.
        about: what made it.
        sections: the figures.
        omitted: title of a figure -> why it is not there.
    """

    title: str
    facts: dict[str, str]
    command: str
    about: str
    sections: tuple[Section, ...]
    omitted: dict[str, str]


def views_of(names: Sequence[str], criterion: str = "") -> list[Chart]:
    """The views of a report; where none is named all, of neurons if the criterion ranks neurons.

    Raises:
        PlanError: one that reports do not have.
    """
    for name in names:
        if name not in CHARTS:
            raise PlanError(unknown_name("view of a report", name, CHARTS))
    ranks_neurons = bool(criterion) and get_criterion(criterion).neuron_score is not None
    every = [v for v in CHARTS.values() if ranks_neurons or v.granularity == EXPERT_GRANULARITY]
    return [CHARTS[name] for name in dict.fromkeys(names)] or every


def report_of(context: Context, views: Iterable[Chart], title: str = DEFAULT_TITLE) -> Report:
    """The report on a context; what cannot be drawn of it is left out, with the reason."""
    sections, omitted = [], {}
    chosen = list(views)
    for view in chosen:
        try:
            chart = view.draw(context)
        except UserError as error:
            omitted[view.title] = str(error)
            continue
        sections.append(Section(view.name, view.title, chart.alt, chart.exported(), chart.table))
    every = views_of((), context.request.criterion)
    names = [] if chosen == every else [view.name for view in chosen]
    command = context.both.report_command(names, "report.html")
    return Report(title, _facts(context), command, made_by(), tuple(sections), omitted)


def _facts(context: Context) -> dict[str, str]:
    model, (a, b) = context.model, (context.both.a, context.both.b)
    experts = f"{len(model.layers)} layers of {experts_text(model.layers)} experts"
    shape = f"{experts}, top-{model.layers[0].top_k}"
    return {
        "Model": model.name,
        "Identity": model.identity[:16],
        "Family": model.family.label,
        "Shape": f"{shape}, {format_bytes(model.checkpoint.nbytes)}",
        "Recipe": _recipe(a.criterion, a.corpora, a.gate, a.sparsity),
        "Compared with": _recipe(b.criterion, b.corpora, b.gate, b.sparsity),
        "Statistics": ", ".join(run.manifest.run_id for run in context.runs.values()) or "none",
    }


def _recipe(criterion: str, corpora: Sequence[str], gate: str, sparsity: str) -> str:
    return ", ".join(filter(None, (criterion, " + ".join(corpora), f"gate {gate}", sparsity)))
