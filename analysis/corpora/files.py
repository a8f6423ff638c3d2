"""Local files of documents, read in any order without holding them in memory."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from array import array
from codecs import BOM_UTF8, BOM_UTF16_BE, BOM_UTF16_LE
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from analysis.corpora.documents import CorpusRow, Document, columns_of, row_document
from analysis.corpora.fields import Fields
from analysis.errors import CorpusError, first_line
from analysis.files.content import arrow_file
from analysis.files.json_text import parse_json
from analysis.lazy import pa, pq

_STRIDE = 16  # one position in the file is kept per so many documents, in 16 bytes
_LONGEST_DOCUMENT = 1 << 26  # characters
_PARQUET_ROWS = 1024
_LARGEST_ARRAY = 1 << 28  # bytes of a JSON file that is read as a whole


class _Record(NamedTuple):
    """One document of a file: first byte, line (from 1) and content."""

    start: int
    line: int
    data: bytes


class DocumentFile(ABC):
    """A file of documents, numbered from 0 while the file does not change."""

    def __init__(self, path: Path, fields: Fields) -> None:
        self._path, self._fields, self._was = path, fields, path.stat()

    @abstractmethod
    def __len__(self) -> int:
        """Number of documents."""

    @abstractmethod
    def rows(self, numbers: Sequence[int]) -> Iterator[CorpusRow]:
        """The rows of these numbers, in this order."""

    def read(self, numbers: Sequence[int]) -> Iterator[Document]:
        """The documents of these numbers, in this order; a CorpusError for a row without one."""
        for row in self.rows(numbers):
            yield row.read()

    def _check_unchanged(self, now: os.stat_result) -> None:
        for fact in ("st_dev", "st_ino", "st_size", "st_mtime_ns"):
            if getattr(now, fact) != getattr(self._was, fact):
                raise CorpusError(
                    f"The corpus file {self._path.name} changed while it was read; rerun when "
                    "nothing writes to it."
                )


_Scan = Callable[[BinaryIO, int, str], Iterator[_Record]]  # (file, first line, name)
_Make = Callable[[_Record, str, Fields], Document]


def _lines(file: BinaryIO) -> Iterator[bytes]:
    """The lines of a file; of one that is too long only the beginning, then the rest."""
    return iter(lambda: file.readline(_LONGEST_DOCUMENT + 1), b"")


def _json_lines(file: BinaryIO, line: int, name: str) -> Iterator[_Record]:
    start = file.tell()
    for number, data in enumerate(_lines(file), line):
        if start == 0 and data.startswith((BOM_UTF16_LE, BOM_UTF16_BE)):
            raise CorpusError(f"{name} is UTF-16 text; save it as UTF-8.")
        if len(data) > _LONGEST_DOCUMENT:
            raise CorpusError(
                f"{name}, line {number}, has more than {_LONGEST_DOCUMENT >> 20} MiB; a line is a "
                "document, so split it."
            )
        if not data.isspace():
            yield _Record(start, number, data)
        start += len(data)


def _has_text(data: bytes | bytearray, start: int, name: str) -> bool:
    if len(data) > _LONGEST_DOCUMENT:
        raise CorpusError(
            f"{name} has a document of more than {_LONGEST_DOCUMENT >> 20} MiB at byte {start}; "
            "documents of a text file are separated by blank lines."
        )
    try:
        return bool(data.decode("utf-8").strip())
    except UnicodeDecodeError as error:
        raise CorpusError(
            f"{name} is not UTF-8 text (byte {start + error.start}); save it as UTF-8."
        ) from error


def _paragraphs(file: BinaryIO, line: int, name: str) -> Iterator[_Record]:
    """The non-blank parts of `text.split("\\n\\n")`: blank lines separate documents."""
    start = offset = file.tell()
    parts = bytearray()
    begun = line
    for number, data in enumerate(_lines(file), line):
        offset += len(data)
        if data in (b"\n", b"\r\n") and parts.endswith(b"\n"):
            if _has_text(parts, start, name):
                yield _Record(start, begun, bytes(parts[: -2 if parts.endswith(b"\r\n") else -1]))
            start, begun, parts = offset, number + 1, bytearray()
        else:
            parts += data
            if len(parts) > _LONGEST_DOCUMENT:
                _has_text(parts, start, name)
    if _has_text(parts, start, name):
        yield _Record(start, begun, bytes(parts))


def _text_document(record: _Record, where: str, fields: Fields) -> Document:
    """Plain text; blank lines separate documents."""
    text = record.data.decode("utf-8")
    return Document(text=text.replace("\r\n", "\n").replace("\r", "\n"))


def _row_document(row: Any, where: str, fields: Fields) -> Document:
    if not isinstance(row, dict):
        raise CorpusError(f"{where} is not a JSON object.")
    return row_document(row, where, fields)


def _json_document(record: _Record, where: str, fields: Fields) -> Document:
    """A JSON object per line."""
    try:
        row = parse_json(record.data)
    except ValueError as error:
        reason = str(error).partition(": line ")[0]  # its line number is within this line
        raise CorpusError(
            f'{where} is not JSON: {reason}; each line is an object, as {{"text": "..."}}.'
        ) from error
    return _row_document(row, where, fields)


class _LineFile(DocumentFile):
    """A file read sequentially by `scan`, with a mark at every sixteenth document."""

    def __init__(self, path: Path, fields: Fields, scan: _Scan, make: _Make) -> None:
        super().__init__(path, fields)
        self._scan, self._make = scan, make
        self._starts, self._lines = array("q"), array("q")
        self._total = 0
        with path.open("rb") as file:
            for record in scan(file, 1, path.name):
                if self._total % _STRIDE == 0:
                    self._starts.append(record.start)
                    self._lines.append(record.line)
                self._total += 1

    def __len__(self) -> int:
        return self._total

    def rows(self, numbers: Sequence[int]) -> Iterator[CorpusRow]:
        with self._path.open("rb") as file:
            for number in numbers:
                mark, beyond = divmod(number, _STRIDE)
                file.seek(self._starts[mark])
                records = self._scan(file, self._lines[mark], self._path.name)
                matches = list(islice(records, beyond, beyond + 1))
                self._check_unchanged(os.fstat(file.fileno()))
                where = f"{self._path.name}, line {matches[0].line}"
                yield CorpusRow(where, partial(self._make, matches[0], where, self._fields))


class _ArrayFile(DocumentFile):
    """A file of one JSON array of rows, or of an object with one, in memory as a whole."""

    def __init__(self, path: Path, fields: Fields, rows: Sequence[Any]) -> None:
        super().__init__(path, fields)
        self._rows = rows

    def __len__(self) -> int:
        return len(self._rows)

    def rows(self, numbers: Sequence[int]) -> Iterator[CorpusRow]:
        self._check_unchanged(self._path.stat())
        for number in numbers:
            where = f"{self._path.name}, row {number + 1}"
            yield CorpusRow(where, partial(_row_document, self._rows[number], where, self._fields))


def _open_json(path: Path, fields: Fields) -> DocumentFile:
    """Rows of a .json file: one array, an object with one, or JSON lines under that name."""
    if _begins_lines(path):
        return _LineFile(path, fields, scan=_json_lines, make=_json_document)
    if path.stat().st_size > _LARGEST_ARRAY:
        raise CorpusError(
            f"{path.name} has more than {_LARGEST_ARRAY >> 20} MiB, and JSON that is no JSON lines "
            "is read as a whole; write a row a line, as .jsonl."
        )
    try:
        value = parse_json(path.read_bytes())
    except ValueError as error:
        raise CorpusError(
            f"{path.name} is not JSON: {error}; it holds one array of rows, or a row a line."
        ) from error
    return _ArrayFile(path, fields, _array_in(value, path.name, fields))


def _begins_lines(path: Path) -> bool:
    """Whether the first line with anything on it is a row of its own, and more follows."""
    with path.open("rb") as file:
        first = next((line for line in _lines(file) if not line.isspace()), b"")
        has_more = any(not line.isspace() for line in _lines(file))
    if not has_more or not first.lstrip(BOM_UTF8).startswith(b"{"):
        return False
    try:
        return isinstance(parse_json(first), dict)
    except ValueError:
        return False


def _array_in(value: Any, name: str, fields: Fields) -> Sequence[Any]:
    """The rows of an array, or of the one field of an object that has objects; or a row alone."""
    if isinstance(value, dict) and set(value) & set(columns_of(fields)):
        return [value]
    if isinstance(value, dict):
        lists = [field for field in value.values() if isinstance(field, list) and field]
        tables = [table for table in lists if all(isinstance(row, dict) for row in table)]
        value = tables[0] if len(tables) == 1 else None
    if not isinstance(value, list):
        raise CorpusError(
            f"{name} is neither an array of rows nor an object with one field that is; write a row "
            "a line, as .jsonl."
        )
    return value


class _ParquetFile(DocumentFile):
    """A parquet file; each `read` reads every row group at most once."""

    def __init__(self, path: Path, fields: Fields) -> None:
        super().__init__(path, fields)
        with self._opened() as table:
            schema = table.schema_arrow
            groups = [table.metadata.row_group(n).num_rows for n in range(table.num_row_groups)]
        self._all_columns = tuple(schema.names)
        self._columns = [name for name in columns_of(fields) if name in self._all_columns]
        self._ends = np.cumsum(groups, dtype=np.int64)

    def _opened(self) -> pq.ParquetFile:
        try:
            return pq.ParquetFile(arrow_file(self._path))
        except (OSError, ValueError, pa.ArrowException) as error:
            what = f"is not a readable parquet file: {first_line(error).rstrip('.')}."
            raise CorpusError(f"{self._path.name} {what}") from error

    def __len__(self) -> int:
        return int(self._ends[-1]) if len(self._ends) else 0

    def rows(self, numbers: Sequence[int]) -> Iterator[CorpusRow]:
        rows: dict[int, Mapping[str, Any]] = {}
        self._check_unchanged(self._path.stat())
        with self._opened() as table:
            groups = np.searchsorted(self._ends, np.asarray(numbers), side="right")
            for group in np.unique(groups):
                in_group = np.unique(np.asarray(numbers)[groups == group])
                rows.update(self._rows(table, int(group), in_group))
        self._check_unchanged(self._path.stat())
        for number in numbers:
            where = f"{self._path.name}, row {number + 1}"
            read = partial(row_document, columns=self._all_columns, of_arrow=True)
            yield CorpusRow(where, partial(read, rows[number], where, self._fields))

    def _rows(
        self, table: pq.ParquetFile, group: int, numbers: np.ndarray[Any, np.dtype[np.int64]]
    ) -> Iterator[tuple[int, Mapping[str, Any]]]:
        first = int(self._ends[group - 1]) if group else 0
        try:
            batches = table.iter_batches(_PARQUET_ROWS, row_groups=[group], columns=self._columns)
            for batch in batches:
                here = numbers[(numbers >= first) & (numbers < first + batch.num_rows)]
                rows: list[Mapping[str, Any]] = [{}] * len(here)
                if self._columns:
                    rows = batch.take(pa.array(here - first)).to_pylist()
                yield from zip(here.tolist(), rows, strict=True)
                first += batch.num_rows
                if first > numbers[-1]:
                    return
        except (OSError, ValueError, pa.ArrowException) as error:
            reason = " ".join(str(error).split())
            raise CorpusError(f"{self._path.name} is damaged: {reason}.") from error


_OPENERS: Mapping[str, Callable[[Path, Fields], DocumentFile]] = {
    ".txt": partial(_LineFile, scan=_paragraphs, make=_text_document),
    ".jsonl": partial(_LineFile, scan=_json_lines, make=_json_document),
    ".json": _open_json,
    ".parquet": _ParquetFile,
}


def open_documents(path: Path, fields: Fields) -> DocumentFile:
    """The documents of a local file."""
    if not path.is_file():
        raise CorpusError(f"The corpus file {path} does not exist.")
    documents = _OPENERS[path.suffix](path, fields)
    if len(documents) == 0:
        raise CorpusError(f"The corpus {path} is empty; it needs at least one document.")
    return documents
