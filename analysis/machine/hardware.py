"""What a machine is made of, as far as its speed depends on it; read without torch."""

import os
import platform
from collections.abc import Iterator
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Final

_LINES: Final = 32  # of Linux's list of processors, of which the first is like the others


@cache
def hardware(kernel: Path = Path("/proc")) -> tuple[str, ...]:
    """Its processor, the cores that this process may use, and the GPUs of NVIDIA's driver.

    Machines of which these are equal are taken for equally fast: nodes of a cluster, and each
    container on a machine. `kernel` is where Linux tells.
    """
    processors = _values(kernel / "cpuinfo", "model name")
    processor = next(processors, platform.processor())
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    files = (kernel / "driver/nvidia/gpus").glob("*/information")
    gpus = sorted(model for file in files for model in _values(file, "Model"))
    return (platform.machine(), processor, f"{cores} cores", *gpus)


def _values(file: Path, name: str) -> Iterator[str]:
    """What a file says behind this name, if there is one."""
    if file.is_file():
        with file.open(errors="replace") as lines:
            for line in islice(lines, _LINES):
                key, _, value = line.partition(":")
                if key.strip() == name:
                    yield value.strip()
