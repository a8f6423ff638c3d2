"""Pages with parts that are written from the code, between two comments that say so."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from analysis.errors import UserError
from tools.reference.commands import commands
from tools.reference.compatibility import compatibility, engine_matrix
from tools.reference.criteria import criteria, variants
from tools.reference.demo import corpora
from tools.reference.families import families, refused
from tools.reference.formats import recipe, tables
from tools.reference.results import (
    bits,
    candidates,
    losses,
    repairs,
    right_answers,
    same_bytes,
)

__all__ = ["COMMAND", "PARTS", "Part", "stale", "write"]

COMMAND = "python -m tools.reference"


@dataclass(frozen=True)
class Part:
    """A part of a page that is written from the code.

    Args:
        page: the page, relative to the folder of the repository.
        name: of the part: it stands in the page between `<!-- written: NAME -->` and
            `<!-- /written -->`.
        text: (folder of the repository) -> the part's Markdown, without blank lines around it.
    """

    page: str
    name: str
    text: Callable[[Path], str]


PARTS = (
    Part("README.md", "losses", losses),
    Part("docs/concepts/bits.md", "bits", bits),
    Part("docs/concepts/heapr.md", "same-bytes", same_bytes),
    Part("docs/concepts/repair.md", "repairs", repairs),
    Part("docs/reference/commands.md", "commands", commands),
    Part("docs/reference/compatibility.md", "engines", engine_matrix),
    Part("docs/reference/compatibility.md", "compatibility", compatibility),
    Part("docs/reference/criteria.md", "criteria", criteria),
    Part("docs/reference/criteria.md", "variants", variants),
    Part("docs/reference/demo-model.md", "corpora", corpora),
    Part("docs/reference/demo-model.md", "candidates", candidates),
    Part("docs/reference/demo-model.md", "right", right_answers),
    Part("docs/reference/families.md", "families", families),
    Part("docs/reference/families.md", "refused", refused),
    Part("docs/reference/formats.md", "tables", tables),
    Part("docs/reference/formats.md", "recipe", recipe),
)


def stale(root: Path) -> Mapping[Path, str]:
    """The pages that do not say what the code says, and what they would say.

    Args:
        root: the folder of the repository.

    Raises:
        UserError: a page or the place of a part in it is missing.
    """
    pages: dict[Path, str] = {}
    for part in PARTS:
        path = root / part.page
        pages[path] = _with_part(pages.get(path) or _read(path), part, root)
    return {path: text for path, text in pages.items() if text != _read(path)}


def write(root: Path) -> list[Path]:
    """Bring all pages up to date; returns those that changed."""
    changed = stale(root)
    for path, text in changed.items():
        path.write_text(text, encoding="utf-8")
    return list(changed)


def _read(path: Path) -> str:
    if not path.is_file():
        raise UserError(
            f"There is no page {path}: the documentation is written in a clone of the repository, "
            f"by `{COMMAND}` in its folder."
        )
    return path.read_text(encoding="utf-8")


def _with_part(page: str, part: Part, root: Path) -> str:
    opening, closing = f"<!-- written: {part.name} -->", "<!-- /written -->"
    place = re.compile(f"({re.escape(opening)}\n).*?({re.escape(closing)})", re.DOTALL)
    if not place.search(page):
        raise UserError(
            f"{part.page} has no place for its part {part.name!r}: it stands between the lines "
            f"`{opening}` and `{closing}`."
        )
    return place.sub(lambda match: f"{match[1]}{part.text(root)}\n{match[2]}", page, count=1)
