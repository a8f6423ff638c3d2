"""Focus and scrolling: the skip link and the stops of the tour."""

from pathlib import Path

from app.components.assets import component_of

__all__ = ["keep_focus"]


def keep_focus(stop: int | None = None, target: str = "") -> None:
    """Draw the invisible script; for the entry script, once per run.

    Args:
        stop: index of the tour stop, which scrolls the page once; None without a tour.
        target: CSS selector of the stop's target; empty for the top of the page.
    """
    html = "<span hidden></span>"
    data = {"stop": stop, "target": target}
    component_of(Path(__file__).parent, html=html)(key="focus", height=1, data=data)
