"""A chart: how it is drawn of a context, and what that gives, a figure with its numbers."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pandas as pd
import plotly.graph_objects as go

from app.charts.theme import add_provenance
from pruning.atoms.selection import AtomScope
from pruning.plan import EXPERT_GRANULARITY, tool_version

if TYPE_CHECKING:
    from app.charts.context import Context


@dataclass(frozen=True)
class Drawing:
    """A chart of one context."""

    figure: Callable[..., go.Figure]  # makes it, called with `dark`: for the dark theme or not
    table: pd.DataFrame  # the numbers behind it
    alt: str  # what it says, in one sentence
    about: str  # what made it; goes below exported figures
    name: str = ""  # widget key and stem of the files; empty: the chart's
    options: tuple[str, ...] = ()  # what `moeprune plot` needs to draw it, beside the recipes
    command: str = ""  # the command line that draws the same; empty where none does
    is_usual: bool = True  # whether `moeprune plot` makes the choices that only this chart has
    # For pages: the same, by the name of a panel, as figures that stand below each other where the
    # window is narrow. The first has the legend.
    panels: Mapping[str, Callable[..., go.Figure]] = field(default_factory=dict)

    def exported(self) -> go.Figure:
        """The figure for a file: on white, with its provenance."""
        return add_provenance(self.figure(dark=False), self.about)


@dataclass(frozen=True)
class Chart:
    """One chart of the dashboard; pages, `moeprune plot` and reports draw it in this way only."""

    name: str  # VIEW of the command line
    page: str  # the page that shows it
    title: str  # what it answers, as a heading
    # the drawing of a context; a UserError says what the context lacks
    make: Callable[["Context"], Drawing]
    granularity: str = EXPERT_GRANULARITY  # what is removed in it
    reads_plan: bool = False  # it shows the plan, with its schedule and constraints
    reads_scope: bool = False  # it shows the neurons that go, which depend on the scope
    # Where every expert loses the same share, it shows the widest scope, as command lines do.
    crosses_experts: bool = False

    def draw(self, context: "Context") -> Drawing:
        """The drawing of a context, with the command line that draws the same.

        Raises:
            UserError: the context lacks what the chart shows.
        """
        drawing = self.make(context)
        named = replace(drawing, name=drawing.name or self.name)
        if drawing.name or not drawing.is_usual or not self.is_of_command(context):
            return named
        line = context.both.plot_command(self.name, f"{self.name}.svg", drawing.options)
        return replace(named, command=line)

    def is_of_command(self, context: "Context") -> bool:
        """Whether `moeprune plot`, which knows only recipes, draws the same of a context."""
        has_plan = context.has_usual_plan or not self.reads_plan
        is_crossed = self.crosses_experts and context.plan.scope is AtomScope.EXPERT
        has_scope = context.has_usual_scope or not self.reads_scope or is_crossed
        return context.is_plain and has_plan and has_scope


def chart(
    name: str, page: str, **declared: Any
) -> Callable[[Callable[["Context"], Drawing]], Chart]:
    """The chart that the decorated function draws; the first line of its docstring is the title."""

    def made(make: Callable[["Context"], Drawing]) -> Chart:
        title = (make.__doc__ or name).partition("\n")[0].rstrip(".")
        return Chart(name, page, title, make, **declared)

    return made


def made_by(*facts: str) -> str:
    """Provenance line: the facts, the version of this program, the date."""
    today = datetime.now(UTC).date().isoformat()
    return " | ".join([*filter(None, facts), f"moe-prune-studio {tool_version()}", today])
