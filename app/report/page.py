"""A report: charts with captions, numbers and provenance on one HTML page, which prints."""

from __future__ import annotations

import base64
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
import plotly.io
import plotly.offline
from jinja2 import Environment, StrictUndefined

from analysis.criteria import get_criterion
from analysis.errors import PlanError, UserError, unknown_name
from app.charts.chart import Chart, Drawing, made_by, plan_fact
from app.charts.listing import CHARTS
from app.tables.spreadsheets import csv_text
from pruning.plan.layer_words import experts_text
from pruning.plan.plan import EXPERT_GRANULARITY
from pruning.plan.sizes import format_bytes
from pruning.planning.choice import corpora_words
from pruning.spec.base import default_of, flat_fields, flat_values, option_of
from pruning.spec.spec import PlanSpec

if TYPE_CHECKING:
    from app.loaded import Loaded

DEFAULT_TITLE = "Pruning report"
_ROWS_SHOWN = 100  # of a table on the page; the CSV has all


@dataclass(frozen=True, eq=False)
class Report:
    """A report."""

    title: str
    facts: dict[str, str]  # name -> value, of the model and the recipe
    commands: tuple[str, ...]  # see `commands_of`
    sections: tuple[tuple[Chart, Drawing], ...]
    omitted: dict[str, tuple[str, ...]]  # reason -> titles of missing charts


def views_of(names: Sequence[str], criterion: str = "") -> list[Chart]:
    """The named charts; without names, all that the criterion can rank for."""
    for name in names:
        if name not in CHARTS:
            raise PlanError(unknown_name("view of a report", name, CHARTS))
    ranks_neurons = bool(criterion) and get_criterion(criterion).neuron_score is not None
    every = [v for v in CHARTS.values() if ranks_neurons or v.granularity == EXPERT_GRANULARITY]
    return [CHARTS[name] for name in dict.fromkeys(names)] or every


def report_of(loaded: Loaded, views: Sequence[Chart], title: str = DEFAULT_TITLE) -> Report:
    """The report of these charts; those that cannot be drawn are listed with the reason."""
    sections: list[tuple[Chart, Drawing]] = []
    omitted: dict[str, tuple[str, ...]] = {}
    for view in views:
        try:
            sections.append((view, view.draw(loaded)))
        except UserError as error:
            omitted[str(error)] = (*omitted.get(str(error), ()), view.title)
    commands = tuple(map(_shared, commands_of(loaded, views)))
    return Report(title, facts_of(loaded), commands, tuple(sections), omitted)


def _shared(line: str) -> str:
    """A command line for a page that is shared: of the statistics folder the name, no path."""
    words = shlex.split(line)
    for place, word in enumerate(words[:-1]):
        if word == "--stats-dir":
            words[place + 1] = Path(words[place + 1]).name
    return shlex.join(words)


def commands_of(loaded: Loaded, views: Sequence[Chart]) -> list[str]:
    """The commands that write the same report, or show the plan if that is from a file."""
    if loaded.shown and loaded.shown.file:
        return [loaded.shown.plan_command(loaded.study.place.model)]
    pair = loaded.both
    every = views_of((), pair.a.plan.ranking.criterion)
    names = [] if list(views) == every else [view.name for view in views]
    return [*loaded.lines_before, pair.report_command(names, "report.html")]


def facts_of(loaded: Loaded) -> dict[str, str]:
    """What a report is about, name -> value."""
    model = loaded.model
    experts = f"{len(model.layers)} layers of {experts_text(model.layers)} experts"
    shape = f"{experts}, top-{model.layers[0].top_k}"
    return {
        "Model": model.name,
        "Identity": model.identity[:16],
        "Family": model.family.label,
        "Shape": f"{shape}, {format_bytes(model.checkpoint.nbytes)}",
        **_recipes(loaded),
        **_repair(loaded),
        "Statistics": ", ".join(run.manifest.run_id for run in loaded.runs.values()) or "none",
    }


def _repair(loaded: Loaded) -> dict[str, str]:
    """The repair of the plan on screen, if it has one."""
    repair = loaded.shown.plan.repair if loaded.shown else None
    return {"Repair": f"{repair.words}; {repair.record_id}"} if repair else {}


def _recipes(loaded: Loaded) -> dict[str, str]:
    """The recipe on screen and its baseline."""
    second = {"Compared with": loaded.names[1]} if loaded.beside else {}
    if loaded.choices.spec.by_neuron:
        spec = loaded.neuron_spec
        return {"Plan": _in_words(spec, "granularity", "criterion", "corpora"), **second}
    if loaded.shown is not None and loaded.shown.file:
        return {"Plan": f"{loaded.shown.file} ({plan_fact(loaded)})", **second}
    words = ("criterion", "corpora", "gate")
    if loaded.shown is not None and loaded.shown.ranking is not None:
        return {"Plan": _in_words(loaded.shown.ranking.spec, *words), **second}
    a, b = loaded.both.a.plan, loaded.both.b.plan
    return {"Recipe": _in_words(a, *words), "Compared with": _in_words(b, *words), **second}


def _in_words(spec: PlanSpec, *first: str) -> str:
    """A spec in words: `first` in this order, then other non-default fields."""
    fields, values = flat_fields(PlanSpec), flat_values(spec)
    others = [name for name in values if values[name] != default_of(fields[name])]
    names = dict.fromkeys([*first, *others])
    words = (_word(name, values.get(name, default_of(fields[name]))) for name in names)
    return ", ".join(filter(None, words))


def _word(name: str, value: Any) -> str:
    option = option_of(flat_fields(PlanSpec)[name])
    if name == "corpora":
        value = corpora_words(value)
    elif option and option.words:
        value = ", ".join(option.words(value))
    elif isinstance(value, tuple):
        value = ", ".join(value)
    bare = name in ("granularity", "criterion", "corpora", "sparsity")
    return str(value) if bare or not value else f"{name.replace('_', ' ')} {value}"


def report_html(report: Report) -> str:
    """The page as HTML; opens offline, and names are escaped."""
    # The template marks plotly's script and the figures as safe: plotly writes < and / in JSON as
    # \u003c and \u002f.
    return rendered(
        "report.html.jinja",
        report=report,
        sections=[_section(*section) for section in report.sections],
        rows_shown=_ROWS_SHOWN,
        plotly_js=plotly.offline.get_plotlyjs(),
    )


def _section(chart: Chart, drawing: Drawing) -> dict[str, Any]:
    table = drawing.table
    data = base64.b64encode(csv_text(table).encode()).decode()
    return {
        "name": chart.name,
        "title": chart.title,
        "takeaway": drawing.alt,
        "figure": plotly.io.to_json(drawing.exported()),
        "columns": [str(name) for name in table.columns],
        "rows": [[_cell(value) for value in row] for row in table.head(_ROWS_SHOWN).to_numpy()],
        "num_rows": len(table),
        "csv": f"data:text/csv;base64,{data}",
    }


def _cell(value: object) -> str:
    if isinstance(value, float):
        return "" if pd.isna(value) else f"{value:.4g}"
    return str(value)


def rendered(template: str, filters: Mapping[str, Any] | None = None, **values: Any) -> str:
    """A template of this folder with values, which are escaped, and the provenance line."""
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= filters or {}
    text = files("app.report").joinpath(template).read_text(encoding="utf-8")
    return environment.from_string(text).render(about=made_by(), **values)
