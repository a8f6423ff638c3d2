"""Records beside the statistics: one small JSON file each, in a folder for each kind of record."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from analysis.durable import write_durably
from analysis.errors import StatsError
from analysis.json_text import parse_json_once
from analysis.model import ModelRef


class Kept(Protocol):
    """What a record must say of itself."""

    @property
    def record_id(self) -> str:
        """Readable name and 8 hex digits of the digest; the file's name."""
        ...

    @property
    def digest(self) -> str:
        """Of all that the record is of; two records with the same one say the same."""
        ...

    @property
    def model(self) -> ModelRef:
        """The full model."""
        ...

    def to_json(self) -> str:
        """The content of the file."""
        ...


Record = TypeVar("Record", bound=Kept)


@dataclass(frozen=True, slots=True)
class RecordKind(Generic[Record]):
    """One kind of record.

    Args:
        folder: where its files lie, below a statistics directory.
        word: what one is called in messages.
        command: that makes one again, for messages.
        schema_version: that is read.
        parse: the record in a parsed file without its `schema_version`; may raise KeyError,
            TypeError, AttributeError, ValueError or OverflowError for what is malformed.
    """

    folder: str
    word: str
    command: str
    schema_version: int
    parse: Callable[[Mapping[str, Any]], Record]

    def from_dict(self, raw: object, where: str) -> Record:
        """The record in parsed JSON; `where` is for messages.

        Raises:
            StatsError: malformed, or of another schema.
        """
        again = f"delete it and make it again with `moeprune {self.command}`."
        if not isinstance(raw, dict) or raw.get("schema_version") != self.schema_version:
            raise StatsError(
                f"The {self.word} {where} has another schema than {self.schema_version}; {again}"
            )
        try:
            record = self.parse({k: each for k, each in raw.items() if k != "schema_version"})
            _check_names(record)
        except (KeyError, TypeError, AttributeError, ValueError, OverflowError) as error:
            reason = " ".join(repr(error).split())
            raise StatsError(
                f"The {self.word} {where} cannot be read ({reason}); {again}"
            ) from error
        return record

    def read(self, path: Path) -> Record:
        """The record in a file.

        Raises:
            StatsError: unreadable, malformed, or of another schema.
        """
        try:
            raw = parse_json_once(path.read_bytes())
            # What could not be written again, such as NaN, was not written by this program.
            json.dumps(raw, ensure_ascii=False, allow_nan=False).encode()
        except (OSError, ValueError, RecursionError) as error:
            raise StatsError(f"The {self.word} {path.name} cannot be read ({error}).") from error
        return self.from_dict(raw, path.name)


def _check_names(record: Kept) -> None:
    names = (record.record_id, record.digest, record.model.name, record.model.identity)
    if strange := [name for name in names if not isinstance(name, str)]:
        raise TypeError(f"{strange[0]!r} is no name")


class RecordStore(Generic[Record]):
    """Records of one kind in one or more statistics directories; new ones go to the first."""

    def __init__(self, kind: RecordKind[Record], directories: Sequence[Path]) -> None:
        self._kind = kind
        self._folders = tuple(directory / kind.folder for directory in directories)

    def path(self, record: Record) -> Path:
        """Where a new record is written."""
        return self._folders[0] / f"{record.record_id}.json"

    def find(self, wanted: Record) -> Record:
        """What is known of this record already; `wanted` itself where nothing is.

        Raises:
            StatsError: a file of this name cannot be read.
        """
        for folder in self._folders:
            path = folder / f"{wanted.record_id}.json"
            if path.is_file() and (found := self._kind.read(path)).digest == wanted.digest:
                return found
        return wanted

    def save(self, record: Record) -> Path:
        """Write a record, in place of what was known of the same."""
        path = self.path(record)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_durably(path, record.to_json().encode())
        return path

    def records(
        self, identity: str | None = None, on_problem: Callable[[StatsError], None] | None = None
    ) -> list[Record]:
        """Records by id, of one model or of all; unreadable ones are reported and left out."""
        found: dict[str, Record] = {}
        for folder in self._folders:
            for path in sorted(folder.glob("*.json")):
                try:
                    record = self._kind.read(path)
                except StatsError as error:
                    if on_problem:
                        on_problem(error)
                    continue
                if identity in (None, record.model.identity):
                    found.setdefault(record.record_id, record)
        return [found[name] for name in sorted(found)]


def file_json(schema_version: int, values: Mapping[str, Any]) -> str:
    """The content of a record's file; no number in it may be infinite or undefined."""
    whole = {"schema_version": schema_version, **values}
    return json.dumps(whole, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
