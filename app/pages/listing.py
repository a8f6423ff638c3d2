"""All pages of the dashboard."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from app.loaded import Loaded
from app.pages import compare, evaluate, expert, explore, export, plan, start, story


@dataclass(frozen=True, slots=True)
class PageEntry:
    """A page in the navigation."""

    draw: Callable[[Loaded], None]
    icon: str
    heading: str  # empty where the page writes its own
    is_listed: bool = True  # in the navigation; others are reached by links


# URL path -> page, in the order of the navigation.
PAGES: Mapping[str, PageEntry] = {
    "start": PageEntry(start.draw, "home", ""),
    "explore": PageEntry(explore.draw, "grid_on", "Which experts does each criterion keep?"),
    "compare": PageEntry(compare.draw, "compare_arrows", "Where do two recipes disagree?"),
    "plan": PageEntry(plan.draw, "tune", "Where should the budget go?"),
    "evaluate": PageEntry(evaluate.draw, "insights", "What is lost, what is saved?"),
    "export": PageEntry(export.draw, "output", "Is this the checkpoint to ship?"),
    "story": PageEntry(story.draw, "slideshow", ""),
    "expert": PageEntry(expert.draw, "query_stats", "What does this expert do?", is_listed=False),
}
