"""Device names, checked without torch, whose import takes seconds."""

import re
import sys
from pathlib import Path

from analysis.errors import CheckpointError

# Meta tensors hold no numbers, and Apple's accelerator has no float64, which the sums need.
_NAMES = re.compile(r"auto|cpu|(cuda|xpu)(:[0-9]{1,3})?")
# Of NVIDIA's driver, its integrated GPUs, AMD's driver, and Windows' for Linux.
_GPU_FILES = ("nvidia[0-9]*", "nvidiactl", "nvmap", "kfd", "dxg")


def parse_device(name: str) -> str:
    """The name of a device that runs may use, here or on another machine."""
    if not _NAMES.fullmatch(name):
        raise CheckpointError(
            f"No run can use the device {name!r}; try cpu, or auto, cuda, cuda:N."
        )
    return name


def check_device(name: str) -> None:
    """Refuse a GPU where Linux shows no driver; torch decides on the rest."""
    if name.startswith("cuda") and sys.platform == "linux":
        if not any(next(Path("/dev").glob(pattern), None) for pattern in _GPU_FILES):
            raise CheckpointError(f"The device {name!r} is not available here; try cpu.")
