"""What a launcher of several processes, such as `torchrun`, told this one. No torch."""

import os


def launched_world() -> int:
    """Processes that were started for this run; 1 without a launcher."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def launched_rank() -> int:
    """Number of this process among them."""
    return int(os.environ.get("RANK", "0"))


def local_world() -> int:
    """Processes of this run on this machine, which share its memory."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", "1"))


def local_rank() -> int:
    """Number of this process among those of its machine, which is the number of its device."""
    return int(os.environ.get("LOCAL_RANK", "0"))
