"""The default statistics directory, and where in one a model's records lie.

Imports little, for commands that only list.
"""

import os
import re
from collections.abc import Iterable
from pathlib import Path

import platformdirs

from analysis.errors import StatsError
from analysis.files.home import from_home
from analysis.files.shipped import shipped_stats

APP_NAME = "moeprune"
STATS_VARIABLE = "MOEPRUNE_STATS_DIR"
_MODELS = "models"  # of the folders of models, in a statistics directory
_DIGITS = 16  # of a model's identity, in the name of its folder
_HEX = re.compile(r"[0-9a-f]+", re.ASCII)
FOLDER_HELP = (
    "Statistics folder, read alongside the shipped one; default: MOEPRUNE_STATS_DIR, or in the "
    "user cache."
)


def cache_folder() -> Path:
    """The program's own in the user's cache."""
    return platformdirs.user_cache_path(APP_NAME)


def usual_stats_dir() -> Path:
    """In the user's cache, wherever a command runs."""
    return cache_folder() / "cached_stats"


def default_stats_dir() -> Path:
    """The folder of commands and servers that name none: that of the environment, or the usual."""
    return Path(os.environ.get(STATS_VARIABLE) or usual_stats_dir())


def folder_of(directory: Path, identity: str) -> Path:
    """Where a statistics directory takes new records of a model: others' cost it no look.

    Raises:
        StatsError: a file names a model by what is no identity, such as a path.
    """
    if not _HEX.fullmatch(identity):
        raise StatsError(f"{identity!r} is no identity of a model, which has hex digits alone.")
    return directory / _MODELS / identity[:_DIGITS]


def record_folders(directories: Iterable[Path], identity: str | None = None) -> list[Path]:
    """Where records of a model may lie, or of any if None, in the order in which they count.

    Each directory itself has those that ship, and those of earlier versions.
    """
    folders: list[Path] = []
    for directory in directories:
        if identity is None:
            folders += sorted((directory / _MODELS).glob("*/"))
        else:
            folders.append(folder_of(directory, identity))
        folders.append(directory)
    return folders


def own_stats_dir(stats_dir: Path | None = None) -> Path:
    """The folder that takes new records: `stats_dir`, or the default one.

    Raises:
        StatsError: it is in the folder that ships.
    """
    own = from_home(stats_dir or default_stats_dir())
    if own.resolve().is_relative_to(shipped_stats().resolve()):
        raise StatsError(
            f"{own} ships with the program: it is read alongside every statistics folder, and "
            "never written. Leave --stats-dir out, or name another folder."
        )
    return own
