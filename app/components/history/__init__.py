"""An entry in the browser's history for each choice, so that Back undoes it."""

from pathlib import Path

from app.components.assets import component_of

__all__ = ["keep_history"]


def keep_history() -> None:
    """Draw the script, which shows nothing; for the entry script, once a run."""
    component_of(Path(__file__).parent, html="<span hidden></span>")(key="history", height=1)
