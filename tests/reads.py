"""Bytes that this process reads."""

from pathlib import Path

import pytest

_COUNTS = Path("/proc/self/io")

counts_reads = pytest.mark.skipif(not _COUNTS.exists(), reason="this system counts no reads")


def bytes_read() -> int:
    """So far, by any call that reads a file; mapped files do not count."""
    lines = _COUNTS.read_text().splitlines()
    return int(dict(line.split(": ") for line in lines)["rchar"])
