"""A chart: a function from a model and what was chosen to a figure with its numbers.

Below are the lines that say what a chart was drawn from.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any

import pandas as pd
import plotly.graph_objects as go

from analysis.files.shipped import tool_version
from app.charts.theme import add_provenance
from pruning.plan.plan import EXPERT_GRANULARITY, NEURON_GRANULARITY

if TYPE_CHECKING:
    from app.loaded import Loaded


class StillFigure(go.Figure):  # type: ignore[misc]
    """A figure that is copied for the browser once: nobody may change it, nor what `to_dict` says.

    Plotly copies all of a figure at each showing, which takes longer than to make its numbers.
    """

    def to_dict(self) -> dict[str, Any]:
        """The figure as plain values."""
        return self._plain

    @cached_property
    def _plain(self) -> dict[str, Any]:
        plain: dict[str, Any] = super().to_dict()
        return plain


@dataclass(frozen=True)
class Drawing:
    """A chart of one model and what was chosen."""

    figure: Callable[..., go.Figure]  # called with `dark`: whether for the dark theme
    table: pd.DataFrame  # the numbers behind it
    alt: str  # its finding in one sentence
    about: str  # provenance, below exported figures
    name: str = ""  # widget key and stem of file names; empty: the chart's
    options: tuple[str, ...] = ()  # options of `moeprune plot` besides the recipes
    command: str = ""  # the equivalent command, if any
    # Panel name -> figure, for pages: stacked in a narrow window; the first has the legend.
    panels: Mapping[str, Callable[..., go.Figure]] = field(default_factory=dict)

    def exported(self) -> go.Figure:
        """The figure for a file: on white, with its provenance."""
        return add_provenance(self.figure(dark=False), self.about)


@dataclass(frozen=True)
class Chart:
    """One chart of the dashboard; pages, `moeprune plot` and reports draw it in this way only."""

    name: str  # VIEW of the command line
    page: str  # the page that shows it
    title: str  # heading
    make: Callable[[Loaded], Drawing]
    granularity: str = EXPERT_GRANULARITY
    at_end: bool = False  # drawn below the rest of its page, which then need not name it
    of_both: bool = False  # compares the plan with the second one, which its command then names
    part: str = ""  # the part of Explore of which it is a view, which then need not name it

    def of_neurons(self, name: str, title: str) -> Chart:
        """The same of neurons, in the widest scope if the plan removes experts."""

        def make(loaded: Loaded) -> Drawing:
            return self.make(loaded.of_neurons())

        return Chart(name, self.page, title, make, NEURON_GRANULARITY)

    def draw(self, loaded: Loaded) -> Drawing:
        """The drawing, with its command; a UserError if data is missing."""
        drawing = self.make(loaded)
        if drawing.name:
            return drawing
        plan = loaded.shown
        options = [*drawing.options, *(["--plan", plan.file] if plan and plan.file else [])]
        picture = f"{self.name}.svg"
        command = loaded.both.plot_command(self.name, picture, options, of_both=self.of_both)
        return replace(drawing, name=self.name, command=command)


def chart(name: str, page: str, **declared: Any) -> Callable[[Callable[[Loaded], Drawing]], Chart]:
    """Register the decorated function as a chart; its first docstring line is the title."""

    def register(make: Callable[[Loaded], Drawing]) -> Chart:
        title = (make.__doc__ or name).partition("\n")[0].rstrip(".")
        return Chart(name, page, title, make, **declared)

    return register


def made_by(*facts: str) -> str:
    """Provenance line: the facts, the version of this program, the date."""
    today = datetime.now(UTC).date().isoformat()
    return " | ".join([*filter(None, facts), f"moe-prune-studio {tool_version()}", today])


def model_fact(loaded: Loaded) -> str:
    """The model, told apart from others of its name."""
    return f"{loaded.model.name} {loaded.model.identity[:8]}"


def models_fact(loaded: Loaded) -> tuple[str, ...]:
    """The compared models; empty if only this one."""
    return (f"models: {', '.join(loaded.models)}",) if loaded.models else ()


def of_corpora(loaded: Loaded, *facts: str) -> str:
    """The line of a chart of all corpora."""
    runs = ", ".join(run.manifest.run_id for run in loaded.runs.values())
    return made_by(model_fact(loaded), runs, f"sparsity {loaded.sparsity}", *facts)


def of_both_plans(loaded: Loaded) -> str:
    """The line of a chart of both plans."""
    a, b = loaded.names
    choices = (loaded.ranking.choice, loaded.second.choice)
    runs = dict.fromkeys(run.manifest.run_id for choice in choices for run in choice.runs)
    return made_by(model_fact(loaded), f"A: {a}", f"B: {b}", ", ".join(runs))


def plan_fact(loaded: Loaded) -> str:
    """Origin of the plan on screen, or the criterion if there is none."""
    if loaded.shown is None:
        return loaded.choices.ranking_criterion.label
    origin, repair = loaded.shown.plan.provenance, loaded.shown.plan.repair
    words = loaded.shown.file or ", ".join(filter(None, (origin.criterion, origin.schedule)))
    return f"{words}, repaired" if repair else words
