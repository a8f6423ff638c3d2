"""Device names, checked without torch, whose import takes seconds."""

import os
import re
import sys
from itertools import takewhile
from pathlib import Path

from analysis.errors import CheckpointError, unknown_name

# Meta tensors hold no numbers, and Apple's accelerator has no float64, which the sums need.
_NAMES = re.compile(r"auto|cpu|(cuda|xpu)(:[0-9]{1,3})?")
# Ways of accelerate to spread weights; a device may be named instead.
_MAPS = ("auto", "balanced", "balanced_low_0", "sequential")
# One for each GPU of NVIDIA's driver.
_NVIDIA = "nvidia[0-9]*"
# Kind of device -> files of its drivers: integrated GPUs of NVIDIA, AMD's, and Windows' for Linux.
_DRIVERS = {
    "cuda": (_NVIDIA, "nvidiactl", "nvmap", "kfd", "dxg"),
    "xpu": ("dri/render*", "accel/*", "dxg"),
}


def parse_device(name: str) -> str:
    """The name of a device that runs may use, here or on another machine."""
    if not _NAMES.fullmatch(name):
        raise CheckpointError(
            f"No run can use the device {name!r}; try cpu, or auto, cuda, cuda:N."
        )
    return name


def parse_device_map(name: str) -> str:
    """A way to spread weights over devices, memory and disk, or the device that has all."""
    if name not in _MAPS and not _NAMES.fullmatch(name):
        raise CheckpointError(unknown_name("device map", name, _MAPS))
    return name


def check_device(name: str, files: Path = Path("/dev")) -> None:
    """Refuse a GPU where Linux shows no driver, or fewer GPUs; torch decides on the rest."""
    kind, _, number = name.partition(":")
    if kind not in _DRIVERS or sys.platform != "linux":
        return
    drivers = {pattern for pattern in _DRIVERS[kind] if next(files.glob(pattern), None)}
    if not drivers:
        raise CheckpointError(f"The device {name!r} is not available here; try cpu.")
    if drivers - {"nvidiactl"} != {_NVIDIA}:  # files of other drivers do not tell how many
        return
    present = [file.name for file in files.glob(_NVIDIA)]
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES", ",".join(present)).split(",")
    gpus = len(list(takewhile(lambda gpu: gpu.strip() not in ("", "-1"), chosen)))
    if int(number or 0) >= gpus:
        reason = f"GPUs are numbered 0 to {gpus - 1}" if gpus else "CUDA_VISIBLE_DEVICES hides all"
        raise CheckpointError(f"The device {name!r} is not available here; {reason}.")
