"""Focus and keys: the skip link, groups of choices, and the keys of the story."""

from pathlib import Path

from app.components.assets import component_of

__all__ = ["keep_focus"]


def keep_focus() -> None:
    """Draw the invisible script; for the entry script, once per run."""
    component_of(Path(__file__).parent, html="<span hidden></span>")(key="focus", height=1)
