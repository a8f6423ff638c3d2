"""The story as one HTML file, which fetches nothing."""

import base64
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from typing import Any, Final

from analysis.files.shipped import DEMO_MODEL
from app.charts.kept_by import NEUTRAL
from app.charts.theme import (
    GRID,
    SEQUENTIAL,
    SERIES_DARK,
    SERIES_LIGHT,
    ink,
    muted,
    paper,
    primary,
    this_plan,
)
from app.loaded import Loaded
from app.report.page import DEFAULT_TITLE, facts_of, rendered
from app.report.sentences import DEMO_NOTE
from app.report.story import Json, Source, story_of
from pruning.spec.base import command_line, option_words

_TITLE: Final = "MoE Prune Studio"
_ASKED: Final = ("criterion", "corpora", "runs", "gate", "sparsity")  # of a plan
_SCRIPTS: Final = ("story_ranking.js", "story_charts.js", "story.js")
_BAND: Final = {False: "#e4e7ea", True: "#2a343b"}


@dataclass(frozen=True, eq=False)
class StoryPage:
    """What the file holds."""

    title: str
    story: Json
    facts: Mapping[str, str]
    command: str
    about_model: str

    @property
    def missing(self) -> list[Json]:
        """Findings without data."""
        return [slide for slide in self.story["slides"] if "missing" in slide]


def story_page(loaded: Loaded, title: str) -> StoryPage:
    """The story of a plan."""
    source = Source(loaded)
    story = story_of(source)
    loaded = source.steps[source.percent]
    words = [*option_words(loaded.study.request(loaded.spec), only=_ASKED)]
    if folder := loaded.study.place.stats_dir:
        words += ["--stats-dir", folder.name]  # the page is shared: not the path
    return StoryPage(
        _TITLE if title == DEFAULT_TITLE else title,
        story,
        facts_of(loaded),
        command_line("report", loaded.study.place.model, *words, "--story", "-o", "story.html"),
        DEMO_NOTE if loaded.model.name == DEMO_MODEL else "",
    )


def story_html(page: StoryPage) -> str:
    """The page; names are escaped, and only its own script can run."""
    script = "\n".join(map(_asset, _SCRIPTS))
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return rendered(
        "story.html.jinja",
        title=page.title,
        story=_plain(page.story),
        facts=page.facts,
        command=page.command,
        about_model=page.about_model,
        missing=page.missing,
        colors=_colors(),
        style=_asset("story.css"),
        script=script,
        digest=digest,
    )


def _asset(name: str) -> str:
    return files("app.report").joinpath(name).read_text(encoding="utf-8")


def _colors() -> str:
    """Custom properties of CSS: the colours of charts, light and dark."""
    light, dark = (
        "; ".join(f"--{name}: {value}" for name, value in _theme(d)) for d in (False, True)
    )
    return (
        f":root {{ {light} }}\n@media (prefers-color-scheme: dark) "
        f"{{ :root:not([data-theme=light]) {{ {dark} }} }}"
    )


def _theme(dark: bool) -> list[tuple[str, str]]:
    stops, series = SEQUENTIAL[dark], SERIES_DARK if dark else SERIES_LIGHT
    both, neither = NEUTRAL[dark]
    return [
        *(("ink", ink(dark)), ("muted", muted(dark)), ("paper", paper(dark))),
        *(("primary", primary(dark)), ("plan", this_plan(dark)), ("line", GRID[dark])),
        *(("both", both), ("neither", neither), ("band", _BAND[dark])),
        *((f"series-{place}", color) for place, color in enumerate(series)),
        *(("stops", " ".join(stops)), ("scale", f"linear-gradient(to right, {', '.join(stops)})")),
    ]


def _plain(value: Any) -> Any:
    """As JSON has it: numbers of numpy become plain, and what is no number null.

    Of fractions twelve digits, as the last ones depend on the processor.
    """
    value = value.item() if hasattr(value, "item") else value
    match value:
        case Mapping():
            return {str(name): _plain(entry) for name, entry in value.items()}
        case list() | tuple():
            return list(map(_plain, value))
        case float() if value != value or value in (float("inf"), float("-inf")):
            return None
        case float():
            return float(f"{value:.12g}")
    return value
