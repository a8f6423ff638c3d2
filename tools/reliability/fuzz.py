"""Fuzzing: readers are given files that are wrong somehow, and answer or say what is wrong.

`python -m tools.reliability.fuzz --minutes 30 --seed 1` prints a table, and saves what escaped.
An escape is anything but a result or a `UserError`: another exception, more than SECONDS or
MEBIBYTES of memory, a write outside the folder.
"""

import argparse
import contextlib
import logging
import os
import resource
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from types import FrameType

import pandas as pd

from analysis.errors import SeveralErrors, UserError
from pruning.tasks.loading import quiet_transformers
from tools.reliability.reader import Reader
from tools.reliability.readers import READERS, copied, make_inputs

SECONDS = 20
MEBIBYTES = 768
_PAGE = os.sysconf("SC_PAGE_SIZE")
# Events by which files come to be, change or go -> the arguments that are a place and the
# descriptor of the folder that it is relative to.
_WRITES = {
    "os.remove": ((0, 1),),
    "os.rename": ((0, 2), (1, 3)),
    "os.mkdir": ((0, 2),),
    "os.rmdir": ((0, 1),),
}


class TooLongError(BaseException):
    """A reader took more than SECONDS; no exception of the kinds that readers catch."""


@dataclass
class Tally:
    """What came of one reader."""

    inputs: int = 0
    results: int = 0
    errors: int = 0
    escapes: list[str] = field(default_factory=list)
    slowest: float = 0.0
    peak_mib: float = 0.0


class _Writes:
    """Notes what is written outside of a folder, while it is switched on.

    Python has no way to take an audit hook off again, so there is one for the rest of the process,
    from the first time on: also idle it slows what copies and reads files.
    """

    def __init__(self) -> None:
        self.allowed: Path | None = None
        self.found: list[str] = []
        self._is_heard = False

    def begin(self, allowed: Path) -> None:
        """From here on, only what is written in this folder is not noted."""
        if not self._is_heard:
            sys.addaudithook(self._note)
            self._is_heard = True
        self.found, self.allowed = [], allowed

    def _note(self, event: str, arguments: tuple[object, ...]) -> None:
        if self.allowed is None:
            return
        places: tuple[tuple[object, object], ...] = ()
        if event == "open" and isinstance(arguments[2], int):
            writes = arguments[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC)
            places = ((arguments[0], -1),) if writes else ()
        elif event in _WRITES:
            places = tuple((arguments[place], arguments[at]) for place, at in _WRITES[event])
        for place, folder in places:
            if isinstance(place, str | os.PathLike) and self._is_outside(place, folder):
                self.found.append(f"{event} {os.fspath(place)!r}")

    def _is_outside(self, place: str | os.PathLike[str], folder: object) -> bool:
        beside = "" if folder == -1 else os.readlink(f"/proc/self/fd/{folder}")  # noqa: PTH115
        # Not resolved: that would read the disk inside of the hook.
        path = os.path.abspath(os.path.join(beside, os.fspath(place)))  # noqa: PTH100, PTH118
        return not path.startswith((str(self.allowed), "/dev/", "/proc/"))


_writes = _Writes()


@contextlib.contextmanager
def bounded(folder: Path) -> Iterator[None]:
    """While it lasts, time and memory are bounded and writes outside of the folder are errors."""

    def alarm(_number: int, _frame: FrameType | None) -> None:
        raise TooLongError(f"more than {SECONDS} s")

    mapped = int(Path("/proc/self/statm").read_text().split()[0]) * _PAGE
    before = resource.getrlimit(resource.RLIMIT_AS)
    previous = signal.signal(signal.SIGALRM, alarm)
    resource.setrlimit(resource.RLIMIT_AS, (mapped + (MEBIBYTES << 20), before[1]))
    signal.setitimer(signal.ITIMER_REAL, SECONDS)
    _writes.begin(folder)
    try:
        yield
    finally:
        _writes.allowed = None
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)
        resource.setrlimit(resource.RLIMIT_AS, before)
    if _writes.found:
        raise AssertionError(f"wrote outside of its folder: {_writes.found[0]}")


def attempt(reader: Reader, root: Path, data: bytes, tally: Tally) -> bool:
    """Read one input; whether that ended as it should."""
    path = root / reader.file
    path.write_bytes(data)
    tally.inputs += 1
    Path("/proc/self/clear_refs").write_text("5")  # the peak counts from here
    began = time.perf_counter()
    try:
        with bounded(root):
            reader.read(root)
        tally.results += 1
    except UserError as error:
        tally.errors += 1
        several = isinstance(error, SeveralErrors)  # one line each
        if "\n" in str(error).strip() and not (reader.lists or several):
            tally.escapes.append(f"message of several lines: {str(error)[:300]!r}")
            return False
    except (Exception, TooLongError) as error:  # noqa: BLE001
        last = traceback.extract_tb(error.__traceback__)[-6:]
        at = " > ".join(f"{Path(frame.filename).name}:{frame.lineno}" for frame in last)
        tally.escapes.append(f"{type(error).__name__}: {str(error)[:160]} at {at}")
        return False
    finally:
        tally.slowest = max(tally.slowest, time.perf_counter() - began)
        tally.peak_mib = max(tally.peak_mib, _peak_mib())
    return True


def _peak_mib() -> float:
    status = Path("/proc/self/status").read_text()
    line = next(line for line in status.splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) / 1024


def fuzz(
    reader: Reader, root: Path, numbers: range, seed: int, tally: Tally, keep: Path | None = None
) -> None:
    """Give a reader the inputs of these numbers; the same seed and number are the same input.

    Bombs take seconds to make, and are left out where no inputs are kept.
    """
    path = root / reader.file
    valid = path.read_bytes()
    always = reader.inputs(valid, with_bomb=keep is not None) if numbers.start == 0 else []
    try:
        for number in numbers:
            random = Random(f"{seed} {reader.name} {number}")  # noqa: S311
            data = always[number] if number < len(always) else reader.mutate(valid, random)
            if not attempt(reader, root, data, tally):
                tally.escapes[-1] = f"seed {seed} number {number}: {tally.escapes[-1]}"
                if keep is not None:
                    (keep / f"{reader.name.replace('/', '-')} {seed} {number}").write_bytes(data)
    finally:
        path.write_bytes(valid)


def table_of(tallies: dict[str, Tally]) -> pd.DataFrame:
    """Table `reader, inputs, results, user_errors, escapes, slowest_s, peak_mib`."""
    rows = [
        (name, t.inputs, t.results, t.errors, len(t.escapes), t.slowest, t.peak_mib)
        for name, t in tallies.items()
    ]
    names = ["reader", "inputs", "results", "user_errors", "escapes", "slowest_s", "peak_mib"]
    return pd.DataFrame(rows, columns=names)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--reader", action="append", help="part of a reader's name")
    parser.add_argument("--keep", type=Path, default="escaped", help="folder for what escaped")
    chosen = parser.parse_args()
    logging.disable()
    quiet_transformers()
    wanted = [r for r in READERS if not chosen.reader or any(n in r.name for n in chosen.reader)]
    tallies = {reader.name: Tally() for reader in wanted}
    chosen.keep.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        make_inputs(Path(folder) / "valid")
        root = copied(Path(folder) / "valid", Path(folder) / "broken")
        ends, number, step = time.monotonic() + 60 * chosen.minutes, 0, 40
        while number == 0 or time.monotonic() < ends:
            for reader in wanted:
                numbers = range(number, number + step)
                fuzz(reader, root, numbers, chosen.seed, tallies[reader.name], chosen.keep)
            number += step
    for name, tally in tallies.items():
        for escape in tally.escapes[:20]:
            print(f"{name}: {escape}")
    table = table_of(tallies)
    print(table.round({"slowest_s": 2, "peak_mib": 0}).to_string(index=False))
    print(f"{table['inputs'].sum()} inputs, {table['escapes'].sum()} escapes")
    sys.exit(bool(table["escapes"].sum()))


if __name__ == "__main__":
    main()
