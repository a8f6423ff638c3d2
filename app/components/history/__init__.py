"""Adds each choice to the browser's history, so that Back undoes it."""

from pathlib import Path

from app.components.assets import component_of

__all__ = ["keep_history"]


def keep_history() -> None:
    """Draw the invisible script; for the entry script, once per run."""
    component_of(Path(__file__).parent, html="<span hidden></span>")(key="history", height=1)
