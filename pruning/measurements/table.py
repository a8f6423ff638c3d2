"""The table on disk: shards of blocks, one for each process that writes, read as one.

A process appends to a shard of its own, so nobody waits, also in a folder of several machines. A
line is handed to the system at once, so it survives a kill; a line that a kill cut short is no
block. Of two blocks of the same numbers the first counts: those of the first folder, by file name.
"""

from __future__ import annotations

import os
import secrets
import socket
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import lru_cache
from hashlib import sha256
from pathlib import Path
from threading import Lock
from typing import Any, Final

from analysis.errors import StatsError
from analysis.files.content import read_whole
from analysis.files.durable import sync_file, sync_folder
from analysis.files.locking import locked
from analysis.files.naming import digest_of, now, run_name
from pruning.measurements.block import Block, SampleSet
from pruning.measures.result import MEASURES, SampleSums

FOLDER: Final = "measurements"
SUFFIX: Final = ".jsonl"


@dataclass(frozen=True, slots=True, eq=False)
class PlanSums:
    """What is known of one plan on a whole set of samples."""

    kept: tuple[int, ...]  # experts or neurons that stay in each layer with experts
    samples: tuple[str, ...]  # ids, in the order of the set
    sums: Mapping[str, SampleSums]  # by measure
    made: Mapping[str, Any] = field(default_factory=dict)  # how, see `Block`

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PlanSums) and self._plain == other._plain

    def __hash__(self) -> int:
        return hash((self.kept, self.samples))

    @property
    def _plain(self) -> object:
        values = {
            name: (each.sums.tolist(), each.counts.tolist(), each.documents)
            for name, each in self.sums.items()
        }
        return self.kept, self.samples, values

    def blocks(
        self, model: str, plan: str, where: SampleSet, made: Mapping[str, Any]
    ) -> list[Block]:
        """Its sums as blocks: one for all measures of the same positions."""
        alike = defaultdict[bytes, dict[str, SampleSums]](dict)
        for name, each in self.sums.items():
            alike[each.counts.tobytes()][name] = each
        count = len(self.samples)
        return [
            Block(model, plan, self.kept, where, count, self.samples, sums, made)
            for sums in alike.values()
        ]

    def joined(self, new: PlanSums) -> PlanSums:
        """Both; of measures that both have, the new sums."""
        return replace(self, sums={**self.sums, **new.sums})

    def without(self, measures: Iterable[str]) -> PlanSums:
        """The others of its sums."""
        return replace(
            self, sums={name: each for name, each in self.sums.items() if name not in measures}
        )


@dataclass(eq=False)
class Measurements:
    """The table of one or more statistics directories; new blocks go to the first."""

    directories: Sequence[Path]
    _states: dict[Path, tuple[int, int]] = field(default_factory=dict, init=False)
    _index: dict[tuple[str, str, str], list[Block]] = field(default_factory=dict, init=False)
    problems: list[StatsError] = field(default_factory=list, init=False)  # of unreadable lines

    def __post_init__(self) -> None:
        self.directories = tuple(self.directories)
        self.refresh()

    @property
    def folder(self) -> Path:
        """Where new blocks are written."""
        return self.directories[0] / FOLDER

    @property
    def shards(self) -> list[Path]:
        """The files, in the order in which their blocks count."""
        folders = [directory / FOLDER for directory in self.directories]
        return [path for folder in folders for path in sorted(folder.glob(f"*{SUFFIX}"))]

    def refresh(self) -> None:
        """Read what other processes have written since."""
        states = {path: state for path in self.shards if (state := _state(path))}
        if states == self._states:
            return
        index, problems = defaultdict[tuple[str, str, str], list[Block]](list), []
        for path, state in states.items():
            for block in _shard(path).of(state):
                if isinstance(block, StatsError):
                    problems.append(block)
                else:
                    index[block.model, block.plan, block.where.dtype].append(block)
        self._states, self._index, self.problems = states, dict(index), problems

    def blocks(self, model: str, plan: str, dtype: str) -> Sequence[Block]:
        """All blocks of a plan in this dtype."""
        return self._index.get((model, plan, dtype), ())

    def of_plans(self, model: str, plans: Iterable[str], where: SampleSet) -> dict[str, PlanSums]:
        """What is known of each of these plans on the whole of a set of samples; see `of_set`."""
        known = {plan: self.of_set(model, plan, where) for plan in plans}
        return {plan: sums for plan, sums in known.items() if sums}

    def add_plans(
        self,
        model: str,
        plans: Mapping[str, PlanSums],
        where: SampleSet,
        made: Mapping[str, Any],
    ) -> None:
        """Append what is not known yet of what was measured on a whole set of samples."""
        self.refresh()
        known = self.of_plans(model, plans, where)
        blocks = []
        for plan, sums in plans.items():
            new = sums.without(known[plan].sums) if plan in known else sums
            blocks += new.blocks(model, plan, where, made)
        if blocks:
            self.add(blocks)

    def of_set(self, model: str, plan: str, where: SampleSet) -> PlanSums | None:
        """What is known of a plan on the whole of a set of samples; None if nothing is."""
        return merged(self.blocks(model, plan, where.dtype), where)

    def by_sample(
        self,
        model: str,
        plan: str,
        dtype: str,
        measures: Sequence[str],
        is_alike: Callable[[Block], bool] = lambda _: True,
    ) -> dict[str, tuple[tuple[float, ...], int]]:
        """Id of a sample -> the sums of these measures, and the count, of a plan on any set.

        For measures that draw nothing. `is_alike`: of blocks of which this holds alone.
        """
        known: dict[str, tuple[tuple[float, ...], int]] = {}
        for block in filter(is_alike, self.blocks(model, plan, dtype)):
            if all(name in block.sums for name in measures):
                columns = [block.sums[name].sums.tolist() for name in measures]
                counts = block.sums[measures[0]].counts.tolist()
                for sample, count, *sums in zip(block.samples, counts, *columns, strict=True):
                    known.setdefault(sample, (tuple(sums), count))
        return known

    def add(self, blocks: Sequence[Block], *, sync: bool = True) -> None:
        """Append blocks to the shard of this process; `sync`: they survive a loss of power too.

        Raises:
            StatsError: they cannot be written; the shard is as it was.
        """
        path = self.folder / _shard_name(os.getpid())
        with _refusals(path):
            self.folder.mkdir(parents=True, exist_ok=True)
            _append(path, b"".join(block.to_line() for block in blocks), sync=sync)
        for block in blocks:
            self._index.setdefault((block.model, block.plan, block.where.dtype), []).append(block)

    def sync(self) -> None:
        """Make all blocks that this process appended survive a loss of power.

        Raises:
            StatsError: the disk refuses.
        """
        path = self.folder / _shard_name(os.getpid())
        if path.is_file():
            with _refusals(path):
                sync_file(path)

    @contextmanager
    def claimed(self, **piece: object) -> Iterator[None]:
        """Keep other processes from measuring the same piece of work, as it names it.

        Raises:
            filelock.Timeout: another process measures it.
        """
        with locked(self.folder / digest_of(piece)[:16]):
            yield


@contextmanager
def _refusals(path: Path) -> Iterator[None]:
    """What the system refuses, as one line."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or error
        raise StatsError(f"Measurements cannot be written to {path}: {reason}.") from error


def _append(path: Path, lines: bytes, *, sync: bool) -> None:
    """All of these lines at the end of a file, or none of them."""
    is_new = not path.exists()
    # Unbuffered, so that the lines are handed to the system at once.
    with path.open("ab", buffering=0) as file:
        size, written = file.tell(), 0
        try:
            while written < len(lines):
                written += file.write(lines[written:]) or 0
            if sync:
                os.fsync(file.fileno())
        except OSError:
            file.truncate(size)
            raise
    if is_new:
        sync_folder(path.parent)


def merged(blocks: Iterable[Block], where: SampleSet) -> PlanSums | None:
    """What blocks of one plan say of the whole of a set of samples; None if nothing."""
    first: Block | None = None
    sums: dict[str, SampleSums] = {}
    for block in blocks:
        if not block.is_whole or block.where.digest != where.digest:
            continue
        first = first or block
        for name, each in block.sums.items():
            if block.where.seed == where.seed or not MEASURES[name].draws:
                sums.setdefault(name, each)
    return PlanSums(first.kept, first.samples, sums, first.made) if first and sums else None


@lru_cache(maxsize=4)
def _shard_name(process: int) -> str:
    """A name that no other process has, on any machine; a later one sorts after it."""
    when = now().replace(":", "").partition(".")[0].replace("-", "")
    digest = secrets.token_hex(4)
    return run_name(when, socket.gethostname(), str(process), digest=digest) + SUFFIX


def _state(path: Path) -> tuple[int, int] | None:
    try:
        state = path.stat()
    except FileNotFoundError:  # deleted a moment ago
        return None
    return state.st_mtime_ns, state.st_size


@dataclass(eq=False)
class _Shard:
    """The blocks of a file, or why a line is none; of a file that grew, the rest is read."""

    path: Path
    blocks: list[Block | StatsError] = field(default_factory=list)
    _read: bytes = b""  # digest of the lines so far
    _bytes: int = 0  # of these
    _state: tuple[int, int] | None = None
    _lock: Lock = field(default_factory=Lock)

    def of(self, state: tuple[int, int]) -> tuple[Block | StatsError, ...]:
        """The blocks of the file as it is now."""
        with self._lock:
            if state != self._state:
                self._update()
                self._state = state
            return tuple(self.blocks)

    def _update(self) -> None:
        try:
            content = read_whole(self.path)
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            words = f"The measurements {self.path.name} cannot be read ({reason})."
            self.blocks, self._bytes, self._read = [StatsError(words)], 0, b""
            return
        # What a kill cut short, or what is being written, is no line.
        content = content[: content.rfind(b"\n") + 1]
        if not self._bytes or sha256(content[: self._bytes]).digest() != self._read:
            self.blocks, self._bytes = [], 0
        number = len(self.blocks)
        for line in content[self._bytes :].splitlines(keepends=True):
            number += 1
            self.blocks.append(_block(line, f"Line {number} of the measurements {self.path.name}"))
        self._bytes, self._read = len(content), sha256(content).digest()


def _block(line: bytes, name: str) -> Block | StatsError:
    try:
        return Block.from_line(line)
    except (ValueError, RecursionError) as error:
        words = " ".join(str(error).split())
        advice = "remove the line, and measure again what it was of."
        return StatsError(f"{name} cannot be read ({words}); {advice}")


@lru_cache(maxsize=4096)
def _shard(path: Path) -> _Shard:
    return _Shard(path)
