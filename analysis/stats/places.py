"""Where statistics are kept unless a person says otherwise. Light: commands that list read it."""

from pathlib import Path

import platformdirs

APP_NAME = "moeprune"


def default_stats_dir() -> Path:
    """`cached_stats/` of the working directory if there is one, else the user's cache."""
    here = Path.cwd() / "cached_stats"
    return here if here.is_dir() else platformdirs.user_cache_path(APP_NAME) / "cached_stats"
