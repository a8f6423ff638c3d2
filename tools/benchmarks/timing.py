"""Time several things in turns, so that a slow moment of the machine hits all of them."""

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import median


def in_turns(
    actions: Mapping[str, Callable[[], object]],
    rounds: int = 7,
    clock: Callable[[], float] = time.perf_counter,
    before: Callable[[], object] = lambda: None,
) -> dict[str, float]:
    """Median seconds of each action by `clock`, after one round that does not count.

    `before` runs before each and does not count either.
    """
    seconds: dict[str, list[float]] = {name: [] for name in actions}
    for number in range(rounds + 1):
        for name, action in actions.items():
            before()
            started = clock()
            action()
            if number:
                seconds[name].append(clock() - started)
    return {name: median(values) for name, values in seconds.items()}


def report(title: str, seconds: Mapping[str, float], base: str) -> None:
    """Print each time and its ratio to `base`."""
    print(title)
    for name, value in seconds.items():
        print(f"  {name:<44} {value * 1e3:10.1f} ms   {value / seconds[base]:6.2f} x")


def peak_memory_mib() -> float:
    """Most memory that this very process has held (Linux).

    Not `ru_maxrss`: a process that was forked and then replaced inherits its parent's.
    """
    status = Path("/proc/self/status").read_text()
    line = next(line for line in status.splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) / 1024
