"""This program, installed or run from a clone: what it declares of itself, what ships with it."""

import os
import re
import tomllib
from functools import cache
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import Any, Final

_NAME: Final = "moe-prune-studio"
_ROOT: Final = Path(__file__).parents[2]
_DECLARED: Final = _ROOT / "pyproject.toml"
# The demo's records, next to the packages in a clone and in an installation. They are read, and no
# command writes there.
SHIPPED_STATS = _ROOT / "cached_stats"
# The environment variable that names another folder to read instead: an empty one where these
# records are made, so that none of them is taken for a new one.
SHIPPED_VARIABLE = "MOEPRUNE_SHIPPED_STATS"
DEMO_MODEL = "demo"
DEMO_CHECKPOINT = Path(__file__).parents[1] / "demo" / "checkpoint"


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


def shipped_stats() -> Path:
    """The folder that is read as the shipped one."""
    return Path(os.environ.get(SHIPPED_VARIABLE) or SHIPPED_STATS)


def shipped_folder(path: Path) -> Path | None:
    """The shipped folder that a path, which may be absent, is or lies in; None if it is in none."""
    real = path.resolve()
    folders = (shipped_stats(), DEMO_CHECKPOINT)
    return next((folder for folder in folders if real.is_relative_to(folder.resolve())), None)
