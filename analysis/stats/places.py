"""The default statistics directory, and where in one a model's records lie.

Imports little, for commands that only list.
"""

import os
from collections.abc import Iterable
from pathlib import Path

import platformdirs

APP_NAME = "moeprune"
STATS_VARIABLE = "MOEPRUNE_STATS_DIR"
_MODELS = "models"  # of the folders of models, in a statistics directory
_DIGITS = 16  # of a model's identity, in the name of its folder


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
    """Where a statistics directory takes new records of a model: others' cost it no look."""
    return directory / _MODELS / identity[:_DIGITS]


def record_folders(directories: Iterable[Path], identity: str = "") -> list[Path]:
    """Where records of a model may lie, or of any without an identity, in the order they count.

    Each directory itself has those that ship, and those of earlier versions.
    """
    folders: list[Path] = []
    for directory in directories:
        every = (directory / _MODELS).glob("*/")
        folders += [folder_of(directory, identity)] if identity else sorted(every)
        folders.append(directory)
    return folders
