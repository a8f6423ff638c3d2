"""Where statistics are: the folder of this installation, then the runs that ship."""

from pathlib import Path
from typing import TYPE_CHECKING

import platformdirs

if TYPE_CHECKING:
    from analysis.stats.store import StatsStore

APP_NAME = "moeprune"


def default_stats_dir() -> Path:
    """`cached_stats/` of the working directory if there is one, else the user's cache."""
    here = Path.cwd() / "cached_stats"
    return here if here.is_dir() else platformdirs.user_cache_path(APP_NAME) / "cached_stats"


def stats_store(stats_dir: Path | None = None) -> "StatsStore":
    """A store that writes to `stats_dir` (or the default) and reads the shipped runs as well."""
    from analysis.stats.store import SHIPPED_STATS, StatsStore

    return StatsStore(stats_dir or default_stats_dir(), SHIPPED_STATS)
