"""The default statistics directory. Imports little, for commands that only list."""

from pathlib import Path

import platformdirs

APP_NAME = "moeprune"


def default_stats_dir() -> Path:
    """`cached_stats/` in the working directory if it exists, else in the user's cache."""
    here = Path.cwd() / "cached_stats"
    return here if here.is_dir() else platformdirs.user_cache_path(APP_NAME) / "cached_stats"
