"""How much memory this process may still take, and how to return freed memory at once."""

import ctypes
import os
import platform
import resource
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from analysis.machine.launcher import local_world

_GROUPS = Path("/sys/fs/cgroup")
_OWN_GROUP = Path("/proc/self/cgroup")
# glibc's names for mallopt.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8
_AT_ONCE = 1 << 17  # bytes; larger blocks have pages of their own, given back once freed
_MOST_KEPT = 1 << 25  # bytes, up to which glibc raises that bound as blocks are freed

_REFUSALS = ("can't allocate memory", "out of memory")  # torch's, of processors and of devices


def lacks_memory(error: Exception) -> bool:
    """Whether an error says that no memory was left; torch raises several types."""
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True  # the latter is torch's, which is not imported here
    return any(words in str(error) for words in _REFUSALS)


def free_memory(groups: Path = _GROUPS, own_group: Path = _OWN_GROUP) -> int:
    """Bytes for this process; processes of one run on one machine get equal shares.

    `groups` is the mount of control groups (version 2), which limit containers; `own_group` names
    those of this process.
    """
    import psutil  # which takes longer to import than a light command runs

    free = int(psutil.virtual_memory().available)
    shared = min([free, *_left_in_groups(groups, own_group)]) // local_world()
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    if limit == resource.RLIM_INFINITY:
        return shared
    return min(shared, max(0, limit - psutil.Process().memory_info().vms))


def _left_in_groups(groups: Path, own_group: Path) -> Iterator[int]:
    """Bytes that each limit leaves: that of the process's group and of its parents."""
    lines = own_group.read_text().splitlines() if own_group.is_file() else []
    for line in lines:
        number, _, path = line.split(":", 2)
        if number != "0":  # version 1
            continue
        inner = groups / path.lstrip("/")
        # Inside a container the mount may begin at its own group, so the path may not exist.
        for group in (inner, *(above for above in inner.parents if above.is_relative_to(groups))):
            limit = group / "memory.max"
            if limit.is_file() and (most := limit.read_text().strip()) != "max":
                # Cached files count as used, but can be dropped at any time, those read twice too.
                used_bytes = int((group / "memory.current").read_text())
                lines = (group / "memory.stat").read_text().splitlines()
                counts = dict(line.split() for line in lines)
                cached = sum(int(counts.get(f"{how}_file", 0)) for how in ("active", "inactive"))
                yield max(0, int(most) - used_bytes + cached)


def give_back_memory() -> None:
    """Return freed tensors to the system instead of keeping them for reuse (glibc only).

    Without it a process that loads and drops one layer after another grows by fragmentation, and
    every thread reserves its own address space. Once a whole layer is loaded, the heap keeps
    tensors below 32 MiB again, see `freed_at_once`: new pages for each of them took longer.
    """
    # oneDNN compiles a matrix product for each number of tokens and keeps a thousand by default.
    # It reads this variable at the first product.
    os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "8")
    _set_heap({_M_ARENA_MAX: 1, _M_MMAP_THRESHOLD: _AT_ONCE})


@contextmanager
def freed_at_once(*, afterwards: bool = False) -> Iterator[None]:
    """Inside the block, freed tensors return to the system; after it, the heap keeps them.

    `afterwards`: they still return after it, as memory is scarce.

    Loading a model converts and stacks tensors of all sizes: the heap kept 620 MiB of them beside
    weights of 750, and at the peak as much.
    """
    _set_heap({_M_MMAP_THRESHOLD: _AT_ONCE})
    try:
        yield
    finally:
        kept = _AT_ONCE if afterwards else _MOST_KEPT
        _set_heap({_M_MMAP_THRESHOLD: kept, _M_TRIM_THRESHOLD: 2 * kept})


def _set_heap(options: Mapping[int, int]) -> None:
    if platform.libc_ver()[0] == "glibc":
        libc = ctypes.CDLL(None)
        for option, value in options.items():
            libc.mallopt(option, value)
