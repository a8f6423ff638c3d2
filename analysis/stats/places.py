"""The default statistics directory. Imports little, for commands that only list."""

import os
from pathlib import Path

import platformdirs

APP_NAME = "moeprune"
STATS_VARIABLE = "MOEPRUNE_STATS_DIR"


def cache_folder() -> Path:
    """The program's own in the user's cache."""
    return platformdirs.user_cache_path(APP_NAME)


def usual_stats_dir() -> Path:
    """In the user's cache, wherever a command runs."""
    return cache_folder() / "cached_stats"


def default_stats_dir() -> Path:
    """The folder of commands and servers that name none: that of the environment, or the usual."""
    return Path(os.environ.get(STATS_VARIABLE) or usual_stats_dir())
