"""Paths that begin with ~."""

import os
from pathlib import Path


def from_home(path: str | Path) -> Path:
    """The path with ~ replaced; without such a user, the path itself, which may be a file's."""
    return Path(os.path.expanduser(path))  # noqa: PTH111  (Path raises if there is no such user)
