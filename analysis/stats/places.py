"""The default statistics directory. Imports little, for commands that only list."""

from pathlib import Path

import platformdirs

APP_NAME = "moeprune"


def default_stats_dir() -> Path:
    """In the user's cache, wherever a command runs."""
    return platformdirs.user_cache_path(APP_NAME) / "cached_stats"
