"""Reads files of answers: JSON lines of servers and .npz, streamed, and counts them."""

from __future__ import annotations

import lzma
import os
import zipfile
import zlib
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import IO, Any, Final

from analysis.errors import StatsError
from analysis.files.content import check_regular
from analysis.files.json_text import parse_json
from analysis.files.text_file import near_file
from analysis.progress import Progress
from analysis.traffic.arrays import npy_blocks
from analysis.traffic.counting import Tally
from analysis.traffic.formats import RoutedTokens, answer_in, format_of, version_of
from analysis.traffic.layout import Layout

_LONGEST_LINE = 512 << 20  # bytes: 200,000 tokens of 61 layers x top-8, as SGLang writes them
_BESIDE, _PROMPTS = "routed_experts", "prompt_routed_experts"  # arrays of an .npz
NUMPY: Final = "an .npz file"  # the program that wrote it is not known
_LAST_SECOND = 10**11  # of the year 5138; a larger number is no time
_PHASE: Final = "reading traffic"
_MOST_NAMES, _LONGEST_NAME = 16, 100  # of what servers say of themselves
_ZIP: Final = b"PK\x03\x04"
_PACKED: Final = "it is compressed; unpack it first"
# Files of other kinds, by their first bytes.
_OTHERS: Final = {
    b"\x1f\x8b": _PACKED,
    b"BZh": _PACKED,
    b"\xfd7zXZ": _PACKED,
    b"\x28\xb5\x2f\xfd": _PACKED,
    b"\x93NUMPY": "it is a .npy file; save it as .npz: np.savez(PATH, routed_experts=ARRAY)",
}
# What zipfile and its decoders raise on damaged files.
_NO_ARCHIVE = (
    zipfile.BadZipFile,
    zlib.error,
    lzma.LZMAError,
    OSError,
    EOFError,
    ValueError,
)


@dataclass(slots=True)
class Source:
    """Who answered, and when, as far as the answers say."""

    programs: set[str] = field(default_factory=set)  # vLLM, SGLang, NUMPY
    versions: set[str] = field(default_factory=set)
    models: set[str] = field(default_factory=set)  # as the server calls them
    first: int | None = None  # seconds since 1970
    last: int | None = None
    num_requests: int = 0
    num_answers: int = 0
    num_skipped: int = 0  # lines that could not be read

    def add(self, raw: Any, answers: Sequence[RoutedTokens]) -> None:
        """A request and the answers to it."""
        self.programs.add(format_of(raw).program)
        _note(self.versions, version_of(raw))
        _note(self.models, raw.get("model"))
        if type(created := raw.get("created")) is int and 0 < created < _LAST_SECOND:
            self.first = min(created, self.first or created)
            self.last = max(created, self.last or created)
        self.num_requests += 1
        self.num_answers += len(answers)

    @property
    def times(self) -> dict[str, str]:
        """When the first and the last answer began, in UTC; empty if none says."""
        if self.first is None or self.last is None:
            return {}
        return {"first": _date(self.first), "last": _date(self.last)}


def _note(names: set[str], name: object) -> None:
    """Add a name that a server gives; not without bounds."""
    if isinstance(name, str) and name and len(names) < _MOST_NAMES:
        names.add(name[:_LONGEST_NAME])


def _date(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat()


@dataclass(frozen=True, slots=True)
class Record:
    """A line with an answer, or part of an array."""

    where: str  # file and line; begins an error
    read: Callable[[], None]  # adds it; raises a ValueError


class TrafficReader:
    """Adds files to a tally."""

    def __init__(self, layout: Layout, tally: Tally, skips: int = 0) -> None:
        self._layout, self.tally, self._skips = layout, tally, skips
        self.source = Source()

    def read(self, paths: Sequence[Path]) -> Generator[Progress, None, None]:
        """Read all files; bad lines are left out as far as `skips` allows.

        Raises:
            StatsError: a file that is not there, that is cut short or changed meanwhile, or answers
                that are not those of the model.
        """
        before = file_states(paths)
        total, done = sum(size for size, _ in before), 0
        yield Progress(_PHASE, 0, total, "bytes")
        for path, (size, _) in zip(paths, before, strict=True):
            with path.open("rb") as file:
                start = file.read(8)
                for sign, problem in _OTHERS.items():
                    if start.startswith(sign):
                        raise StatsError(f"{path.name} cannot be read: {problem}.")
                is_zip = start.startswith(_ZIP)
                file.seek(0)
                records = self._of_arrays(path) if is_zip else self.of_lines(file, path.name)
                for record in records:
                    self._take(record)
                    if not is_zip:
                        yield Progress(_PHASE, done + file.tell(), total, "bytes")
            done += size
            yield Progress(_PHASE, done, total, "bytes")
        check_unchanged(paths, before)
        if not self.tally.num_counted:
            raise StatsError(
                f"There is no token to count in {', '.join(path.name for path in paths)}."
            )

    def of_lines(self, lines: Iterable[bytes] | IO[bytes], name: str) -> Iterator[Record]:
        """The answers in lines of JSON."""
        for number, line in enumerate(_bounded(lines), 1):
            if not line.isspace():
                yield Record(f"{name}, line {number}", partial(self._add_line, line))

    def _take(self, record: Record) -> None:
        try:
            record.read()
        except ValueError as error:
            if self.source.num_skipped < self._skips:
                self.source.num_skipped += 1
                return
            raise StatsError(f"{record.where}: {str(error).rstrip('.')}.") from error

    def _add_line(self, line: bytes) -> None:
        if len(line) > _LONGEST_LINE:
            raise ValueError(f"it has more than {_LONGEST_LINE >> 20} MiB")
        try:
            value = parse_json(line)
        except ValueError as error:
            if not line.endswith(b"\n"):
                raise ValueError("it is cut short: the file ends within it") from error
            raise ValueError(f"it is not JSON: {str(error).partition(': line ')[0]}") from error
        read = []
        for row in value if isinstance(value, list) else [value]:  # SGLang answers a batch in one
            raw = answer_in(row)
            read.append((raw, list(format_of(raw).read(raw, self._layout))))
        self.tally.add([answer for _, answers in read for answer in answers])
        for raw, answers in read:
            self.source.add(raw, answers)

    def _of_arrays(self, path: Path) -> Iterator[Record]:
        """The arrays of an .npz file, by blocks of tokens."""
        try:
            with zipfile.ZipFile(path) as archive:
                names = {name.removesuffix(".npy"): name for name in archive.namelist()}
                if _BESIDE not in names:
                    known = ", ".join(sorted(names)[:8]) or "nothing"
                    raise StatsError(
                        f"{path.name} has no array {_BESIDE} (tokens x layers x top-k); it has "
                        f"{known}."
                    )
                for name in (_PROMPTS, _BESIDE):
                    if name in names:
                        with archive.open(names[name]) as file:
                            yield from self._of_array(file, path.name, name, _PROMPTS in names)
        except RuntimeError as error:  # encrypted, or of a compression that Python does not have
            reason = str(error).rstrip(".")
            raise StatsError(f"{path.name} cannot be read: {reason}.") from error
        except _NO_ARCHIVE as error:
            reason = str(error).rstrip(".")
            raise StatsError(f"{path.name} is damaged or cut short: {reason}.") from error
        self.source.programs.add(NUMPY)
        self.source.num_requests += 1
        self.source.num_answers += 1

    def _of_array(
        self, file: IO[bytes], name: str, array: str, has_prompts: bool
    ) -> Iterator[Record]:
        where = f"{name}, {array}"
        try:
            for ids in npy_blocks(file, self._layout.check):
                prompt = (len(ids) if array == _PROMPTS else 0) if has_prompts else None
                answer = RoutedTokens(ids, prompt, is_from_first=False)
                yield Record(where, partial(self.tally.add, [answer]))
        except ValueError as error:
            raise StatsError(f"{where}: {error}.") from error


def _bounded(lines: Iterable[bytes] | IO[bytes]) -> Iterable[bytes]:
    if not hasattr(lines, "readline"):
        return lines
    return iter(lambda: lines.readline(_LONGEST_LINE + 1), b"")


def file_states(paths: Sequence[Path]) -> list[tuple[int, int]]:
    """Size and time of each file; a StatsError if one cannot be read."""
    return [(state.st_size, state.st_mtime_ns) for state in map(_state, paths)]


def check_unchanged(paths: Sequence[Path], before: Sequence[tuple[int, int]]) -> None:
    """Refuse files that changed since `file_states`."""
    for path, old, new in zip(paths, before, file_states(paths), strict=True):
        if old != new:
            raise StatsError(
                f"{path.name} changed while it was read; rerun when nothing writes to it."
            )


def _state(path: Path) -> os.stat_result:
    try:
        return check_regular(path)
    except OSError as error:
        hint = near_file(path) if isinstance(error, FileNotFoundError) else ""
        raise StatsError(f"{path} cannot be read: {error.strerror}.{hint}") from error
