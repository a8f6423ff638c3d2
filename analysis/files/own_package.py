"""What this program declares of itself: installed, or run from a clone."""

import re
import tomllib
from functools import cache
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import Any, Final

_NAME: Final = "moe-prune-studio"
_DECLARED: Final = Path(__file__).parents[2] / "pyproject.toml"


@cache  # it reads a file, and pages ask at every rerun
def tool_version() -> str:
    """Version of this program."""
    try:
        return version(_NAME)
    except PackageNotFoundError:
        return str(_project()["version"])


def needs_of(extra: str) -> list[str]:
    """The requirements of an extra, without markers."""
    try:
        declared = requires(_NAME) or ()
    except PackageNotFoundError:
        return list(_project()["optional-dependencies"][extra])
    marker = re.compile(rf"(.+?) *; *extra == ['\"]{extra}['\"]")
    return [match[1] for match in map(marker.fullmatch, declared) if match]


def _project() -> dict[str, Any]:
    project: dict[str, Any] = tomllib.loads(_DECLARED.read_text("utf-8"))["project"]
    return project
