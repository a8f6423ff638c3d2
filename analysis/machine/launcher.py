"""The environment that a launcher such as `torchrun` gives its processes. No torch."""

import os


def launched_world() -> int:
    """Number of processes of this run; 1 without a launcher."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def launched_rank() -> int:
    """Number of this process."""
    return int(os.environ.get("RANK", "0"))


def local_world() -> int:
    """Number of processes of this run on this machine."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", "1"))


def local_rank() -> int:
    """Number of this process on its machine, and of its device."""
    return int(os.environ.get("LOCAL_RANK", "0"))
