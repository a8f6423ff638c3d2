"""A chart: a function from a model and what was chosen to a figure with its numbers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import pandas as pd
import plotly.graph_objects as go

from app.charts.theme import add_provenance
from pruning.plan.plan import EXPERT_GRANULARITY, NEURON_GRANULARITY

if TYPE_CHECKING:
    from app.loaded import Loaded


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
        command = loaded.command_for(self.name, drawing.options)
        return replace(drawing, name=self.name, command=command)


def chart(name: str, page: str, **declared: Any) -> Callable[[Callable[[Loaded], Drawing]], Chart]:
    """Register the decorated function as a chart; its first docstring line is the title."""

    def register(make: Callable[[Loaded], Drawing]) -> Chart:
        title = (make.__doc__ or name).partition("\n")[0].rstrip(".")
        return Chart(name, page, title, make, **declared)

    return register
