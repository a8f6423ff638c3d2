"""Where the page is looked at: what the skip link leads to, and the stops of the tour."""

from pathlib import Path

from app.components.assets import component_of

__all__ = ["keep_focus"]


def keep_focus(stop: int | None = None, target: str = "") -> None:
    """Draw the script, which shows nothing; for the entry script, once a run.

    Args:
        stop: of the tour, whose number scrolls the page once; None where there is no tour.
        target: CSS selector of what the stop names; empty for the top of the page.
    """
    html = "<span hidden></span>"
    data = {"stop": stop, "target": target}
    component_of(Path(__file__).parent, html=html)(key="focus", height=1, data=data)
