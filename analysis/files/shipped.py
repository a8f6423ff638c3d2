"""The folders that ship with the program: they are read, and no command writes there."""

import os
from pathlib import Path

# The demo's records, next to the packages in a clone and in an installation.
SHIPPED_STATS = Path(__file__).parents[2] / "cached_stats"
# The environment variable that names another folder to read instead: an empty one where these
# records are made, so that none of them is taken for a new one.
SHIPPED_VARIABLE = "MOEPRUNE_SHIPPED_STATS"
DEMO_MODEL = "demo"
DEMO_CHECKPOINT = Path(__file__).parents[1] / "demo" / "checkpoint"


def shipped_stats() -> Path:
    """The folder that is read as the shipped one."""
    return Path(os.environ.get(SHIPPED_VARIABLE) or SHIPPED_STATS)


def shipped_folder(path: Path) -> Path | None:
    """The shipped folder that a path, which may be absent, is or lies in; None if it is in none."""
    real = path.resolve()
    folders = (shipped_stats(), DEMO_CHECKPOINT)
    return next((folder for folder in folders if real.is_relative_to(folder.resolve())), None)
