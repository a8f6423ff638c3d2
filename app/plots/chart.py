"""A chart as data: its name, the numbers behind it, how it is drawn, what it says, what made it."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime

import pandas as pd
import plotly.graph_objects as go

from app.figures.theme import add_provenance
from pruning.plan import tool_version


@dataclass(frozen=True)
class Chart:
    """One chart of a page.

    Args:
        name: widget key, stem of the files, and VIEW of `moeprune plot`.
        draw: the figure, in the dark theme or not.
        table: the numbers behind it.
        alt: what it says, in one sentence.
        about: what made it; goes below exported figures.
        options: what `moeprune plot` needs to draw it, beside the recipes.
    """

    name: str
    draw: Callable[[bool], go.Figure]
    table: pd.DataFrame
    alt: str
    about: str
    options: tuple[str, ...] = ()

    def exported(self) -> go.Figure:
        """The figure for a file: on white, with its provenance."""
        return add_provenance(self.draw(False), self.about)


def made_by(*facts: str) -> str:
    """Provenance line: the facts, the version of this program, the date."""
    today = datetime.now(UTC).date().isoformat()
    return " | ".join([*filter(None, facts), f"moe-prune-studio {tool_version()}", today])
