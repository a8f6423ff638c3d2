"""Memory given back at once: what a streamed run does so that it stays as small as it can."""

import ctypes
import os
import platform

# glibc's names for mallopt.
_M_MMAP_THRESHOLD, _M_ARENA_MAX = -3, -8
_LARGE = 1 << 17


def give_back_memory() -> None:
    """Let freed tensors leave the process instead of being kept for later; on Linux with glibc.

    Without it a process that loads and drops one layer after the other grows by the gaps between
    them, and every thread reserves address space of its own.
    """
    # Products of matrices are compiled for each number of tokens that an expert gets; by default
    # a thousand of them are kept. Read when the first product is computed.
    os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "8")
    if platform.libc_ver()[0] != "glibc":
        return
    libc = ctypes.CDLL(None)
    libc.mallopt(_M_ARENA_MAX, 1)
    libc.mallopt(_M_MMAP_THRESHOLD, _LARGE)
