"""Records next to the statistics: one small JSON file each, or many in one, in a folder per kind.

Many that belong together, such as a grid of plans, are one file of JSON lines. New records are
written as files of their own, which count before those in lines.
"""

import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import copy
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, ClassVar, Generic, Literal, Self, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from analysis.cache_keys import most_results
from analysis.errors import StatsError
from analysis.files.content import mentions, read_whole
from analysis.files.durable import make_folder, write_durably
from analysis.files.json_text import parse_json_once
from analysis.files.naming import digest_of, now, run_name
from analysis.model.moe_model import ModelRef
from analysis.stats.places import folder_of, record_folders

SCHEMA_VERSION = 1
_LINES = ".jsonl"  # suffix of files of many records, one a line
SEAL = "sha256"  # the last field of a file: `seal_of` the others
# A list of numbers, null and words without blanks; it goes on one line.
_ROW = re.compile(r"""\[(\n(?:\s+(?:[-+\d.eE]+|null|"[^"\\\s]*"),?)+\s*)\]""")
_IDENTITY = re.compile(rb'"identity":\s*"[^"]+"')  # of a record's model
Count = Annotated[int, Field(ge=0, lt=1 << 62)]


def seal_of(content: Mapping[str, Any]) -> str:
    """SHA-256 of the content of a JSON file, as 64 hex digits, however the file is laid out."""
    return digest_of(json.loads(json.dumps(content, allow_nan=False)))


def check_seal(seal: object, content: Mapping[str, Any]) -> None:
    """Refuse content that is not what was written, with a ValueError."""
    if seal is None:
        raise ValueError(f"it lacks {SEAL}")
    if seal != digest_of(content):
        raise ValueError(f"its values are not those that were written; its {SEAL} differs")


def _words(*words: str) -> Callable[[Mapping[str, Any]], Mapping[str, Any]]:
    """A check that these keys of a JSON object are strings."""

    def check(facts: Mapping[str, Any]) -> Mapping[str, Any]:
        if strange := [word for word in words if not isinstance(facts.get(word), str)]:
            raise ValueError(f"it needs a word for {strange[0]!r}")
        return facts

    return check


def _check_documents(facts: Mapping[str, Any]) -> Mapping[str, Any]:
    count = facts.get("num_documents", 0)
    if count is not None and (type(count) is not int or count < 1):
        raise ValueError(f"its samples are of {count!r} documents")
    return facts


SampleFacts = Annotated[
    Mapping[str, Any],
    AfterValidator(_words("name", "digest")),
    # `num_documents` is null for windows of one text.
    AfterValidator(_check_documents),
]
RunFacts = Annotated[Mapping[str, Any], AfterValidator(_words("dtype"))]


class RecordPart(BaseModel):
    """A JSON object of known keys inside a record; all numbers are finite."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", allow_inf_nan=False, validate_by_name=True
    )


class Record(RecordPart):
    """A stored result, with what it is of and how it was made."""

    folder: ClassVar[str]  # of the files, in a statistics directory
    word: ClassVar[str]  # for a record, in messages
    command: ClassVar[str]  # that reproduces it
    measured: ClassVar[str]  # the field of its results
    optional: ClassVar[frozenset[str]] = frozenset()  # fields that a file may lack

    schema_version: Literal[1] = 1
    record_id: str  # readable name and 8 hex digits of the digest; the file's name
    digest: str  # of all that changes the numbers
    model: ModelRef  # the original model
    settings: Mapping[str, Any]  # those that change the numbers
    made: Mapping[str, Any] = {}  # `created_at`, and what changes no number, such as `device`

    @property
    def is_measured(self) -> bool:
        """Whether it has results; only such records have a file."""
        return bool(getattr(self, self.measured))

    @property
    def created_at(self) -> str:
        """When it was measured; empty if unknown."""
        return str(self.made.get("created_at", ""))

    @classmethod
    def begun(cls, words: Iterable[str], deciding: Mapping[str, Any], **fields: Any) -> Self:
        """A record without results, named by `words`, with the digest of `deciding`."""
        digest = digest_of({"schema_version": SCHEMA_VERSION, **deciding})
        return cls(record_id=run_name(*words, digest=digest), digest=digest, **fields)

    def finished(self, run_facts: Mapping[str, Any], **results: Any) -> Self:
        """The record with results."""
        return self.model_copy(update={**results, "made": {"created_at": now(), **run_facts}})

    def to_dict(self) -> dict[str, Any]:
        """The whole of it as plain JSON, sealed, for people and other programs."""
        return self._sealed(self._facts())

    def _facts(self) -> dict[str, Any]:
        """The fields as plain JSON, in order."""
        return self.model_dump(by_alias=True, exclude_unset=True)

    def _sealed(self, facts: dict[str, Any]) -> dict[str, Any]:
        last = {name: facts.pop(name) for name in ("settings", "made")}
        content = {"schema_version": self.schema_version, **facts, **last}
        return {**content, SEAL: seal_of(content)}

    @property
    def _stored(self) -> dict[str, Any]:
        """What its file holds: numbers by sample lie in the table of measurements."""
        return self._sealed(self.model_dump(by_alias=True, exclude_unset=True))

    def to_line(self) -> str:
        """The record as one line of a file of many."""
        return json.dumps(self._stored, ensure_ascii=False, allow_nan=False) + "\n"

    def to_json(self) -> str:
        """The whole of it as the text of a JSON file, for people and other programs."""
        return self._text(self.to_dict())

    def to_file(self) -> str:
        """The content of the file."""
        return self._text(self._stored)

    def _text(self, content: dict[str, Any]) -> str:
        text = json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False)
        return _ROW.sub(lambda match: f"[{' '.join(match[1].split())}]", text) + "\n"

    @classmethod
    def from_json(cls, text: str | bytes, name: str) -> Self:
        """Parse the text of a file of this name; a StatsError if it is no such record."""
        again = f"delete it and make it again with `moeprune {cls.command}`."
        try:
            raw = parse_json_once(text)
            version = raw.get("schema_version") if isinstance(raw, dict) else None
            if version != SCHEMA_VERSION:
                raise StatsError(
                    f"The {cls.word} {name} has another schema than {SCHEMA_VERSION}; {again}"
                )
            seal = raw.pop(SEAL, None)
            # This program writes nothing that it could not write again, such as NaN.
            plain = json.dumps(raw, ensure_ascii=False, allow_nan=False)
            record = cls.model_validate_json(plain, strict=True)
            problem = "" if record.is_measured else "it has no results"
            if missing := sorted(cls.model_fields.keys() - record.model_fields_set - cls.optional):
                problem = f"it lacks {', '.join(missing)}"
            if not problem:
                check_seal(seal, raw)
        except (ValueError, RecursionError) as error:
            record, problem = None, first_problem(error)
        if record is None or problem:
            raise StatsError(f"The {cls.word} {name} cannot be read ({problem}); {again}")
        return record

    @classmethod
    def read(cls, path: Path) -> Self:
        """The record in a file; a StatsError if it cannot be read."""
        return cls.from_json(cls._content(path), path.name)

    @classmethod
    def read_file(cls, path: Path, identity: str | None = None) -> Sequence[Self | StatsError]:
        """The record in a file, or why it cannot be read; nothing if it is of another model."""
        try:
            content = cls._content(path)
            return [cls.from_json(content, path.name)] if may_be_of(content, identity) else []
        except StatsError as error:
            return [error]

    @classmethod
    def read_lines(cls, path: Path, identity: str | None = None) -> Sequence[Self | StatsError]:
        """The records in the lines of a file, or why they cannot be read; kept until it changes.

        `identity`: without the lines of other models, which are not parsed; of a file that does
        not name the model, none.
        """
        try:
            state = path.stat()
            return cls._read_lines(path, state.st_mtime_ns, state.st_size, identity)
        except (OSError, StatsError) as error:
            return [StatsError(str(error))]

    @classmethod
    def find_line(cls, path: Path, digest: str) -> Self | None:
        """The record of this digest in a file of lines; others are not parsed."""
        try:
            state = path.stat()
            if not _mentions(path, state.st_mtime_ns, state.st_size, digest):
                return None
            lines = cls._lines(path, state.st_mtime_ns, state.st_size)
        except (OSError, StatsError):
            return None
        for line in lines:
            if digest.encode() in line:  # of the record, or of something in it
                try:
                    record = cls.from_json(line, path.name)
                except StatsError:
                    continue
                if record.digest == digest:
                    return record
        return None

    @classmethod
    @lru_cache(maxsize=16)
    def _lines(cls, path: Path, _changed: int, _size: int) -> Sequence[bytes]:
        return cls._content(path).splitlines()

    @classmethod
    @lru_cache(maxsize=128)  # of other models nothing is kept
    def _read_lines(
        cls, path: Path, changed: int, size: int, identity: str | None
    ) -> Sequence[Self | StatsError]:
        records: list[Self | StatsError] = []
        if identity is not None and not _mentions(path, changed, size, identity):
            return records
        for number, line in enumerate(cls._lines(path, changed, size), 1):
            if not may_be_of(line, identity):
                continue
            try:
                records.append(cls.from_json(line, f"{path.name}:{number}"))
            except StatsError as error:
                records.append(error)
        return records

    @classmethod
    def _content(cls, path: Path) -> bytes:
        try:
            return read_whole(path)
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            raise StatsError(f"The {cls.word} {path.name} cannot be read ({reason}).") from error


@lru_cache(maxsize=256)
def _mentions(path: Path, _changed: int, _size: int, words: str) -> bool:
    return mentions(path, words.encode())


def may_be_of(content: bytes, identity: str | None) -> bool:
    """Whether the text of a record may be of this model, or of any if None: it names no other.

    A record is parsed in a third of a millisecond, and this takes a hundredth of it.
    """
    return identity is None or identity.encode() in content or not _IDENTITY.search(content)


def first_problem(error: Exception) -> str:
    """An error in one line; of several errors of pydantic, the first."""
    if not isinstance(error, ValidationError):
        return " ".join(str(error).split())
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    message = str(first["msg"]).removeprefix("Value error, ")
    return " ".join(": ".join(filter(None, (".".join(map(str, first["loc"])), message))).split())


Kept = TypeVar("Kept", bound=Record)
Result = TypeVar("Result")


class RecordStore(Generic[Kept]):
    """Records of one kind in one or more statistics directories; new ones go to the first."""

    kind: type[Kept]
    beside: ClassVar[str] = ""  # a folder of files that its records rest on, if there is one

    def __init__(self, directories: Sequence[Path]) -> None:
        self._directories = tuple(directories)
        self._identity: str | None = None  # of the one model whose files count for caches
        self._key: tuple[str, str] | None = None

    def snapshot(self, identity: str) -> Self:
        """The same, known to caches by the files that a model's records may be in, of this moment.

        It is asked for records of this model alone.
        """
        taken = copy(self)
        taken._identity = identity
        taken._key = type(self).__name__, repr(list(taken._state()))
        return taken

    def folders(self, identity: str | None = None) -> list[Path]:
        """Where records of a model may lie, or of any, in the order in which they count."""
        identity = self._identity if identity is None else identity
        folders = record_folders(self._directories, identity)
        return [folder / self.kind.folder for folder in folders]

    @property
    def folder(self) -> Path:
        """Where records are locked and what is unfinished lies."""
        return self._directories[0] / self.kind.folder

    def path(self, record: Kept) -> Path:
        """Where a new record is written."""
        folder = folder_of(self._directories[0], record.model.identity)
        return folder / self.kind.folder / f"{record.record_id}.json"

    def find(self, new: Kept) -> Kept:
        """The stored record with this digest, or `new` itself."""
        identity = new.model.identity
        for folder in self.folders(identity):
            path = folder / f"{new.record_id}.json"
            if path.is_file() and (record := self.kind.read(path)).digest == new.digest:
                return record
        files = self._files_of_lines(identity)
        in_lines = (self.kind.find_line(path, new.digest) for path in files)
        return next((match for match in in_lines if match is not None), new)

    def save(self, record: Kept) -> Path:
        """Write a record, replacing the stored one."""
        path = self.path(record)
        make_folder(path.parent)
        write_durably(path, record.to_file().encode())
        return path

    @property
    def is_empty(self) -> bool:
        """Whether there is no file."""
        return not any(map(_folder_state, self.folders()))

    @property
    def cache_key(self) -> tuple[str, str]:
        """It changes when a file that may have records of the model does.

        Raises:
            TypeError: the store is of all models, whose every folder would be listed.
        """
        if self._key is None:
            raise TypeError(f"{type(self).__name__} of all models; take a snapshot of one")
        return self._key

    def files(self, identity: str) -> tuple[tuple[Path, list[tuple[str, int, int]]], ...]:
        """Every file that may have records of a model, as it is now, with those they rest on."""
        folders = self.folders(identity)
        beside = [folder.parent / self.beside for folder in folders if self.beside]
        states = ((folder, _folder_state(folder)) for folder in (*folders, *beside))
        return tuple((folder, state) for folder, state in states if state)

    def _state(self) -> Iterator[object]:
        for folder in self.folders():
            yield _folder_state(folder)
            # Of files that records rest on the names count: a record is written after its lines.
            if self.beside:
                yield [name for name, *_ in _folder_state(folder.parent / self.beside)]

    def records(
        self, identity: str | None = None, on_problem: Callable[[StatsError], None] | None = None
    ) -> list[Kept]:
        """Records by id, of one model or of all; unreadable ones go to `on_problem`."""
        records: dict[str, Kept] = {}
        for record in self._readings(identity):
            if not isinstance(record, StatsError):
                records.setdefault(record.record_id, record)
            elif on_problem:
                on_problem(record)
        return [records[name] for name in sorted(records)]

    def _readings(self, identity: str | None) -> Iterator[Kept | StatsError]:
        """The records of a model, or of all, those in files of one record first; and problems."""
        folders = self.folders(identity)
        files = (path for folder in folders for path in sorted(folder.glob("*.json")))
        alone = (self.kind.read_file(path, identity) for path in files)
        lines = self._files_of_lines(identity)
        in_lines = (self.kind.read_lines(path, identity) for path in lines)
        for record in chain.from_iterable(chain(alone, in_lines)):
            if isinstance(record, StatsError) or identity in (None, record.model.identity):
                yield record

    def _files_of_lines(self, identity: str | None) -> Iterator[Path]:
        folders = self.folders(identity)
        return (path for folder in folders for path in sorted(folder.glob(f"*{_LINES}")))


def _folder_state(folder: Path) -> list[tuple[str, int, int]]:
    """Name, modification time and bytes of each file; fast, since pages ask at every run."""
    try:
        with os.scandir(folder) as entries:
            names = (".json", _LINES)
            files = [(entry.name, entry.stat()) for entry in entries if entry.name.endswith(names)]
    except FileNotFoundError:  # no record yet, or one deleted a moment ago
        return []
    return sorted((name, stat.st_mtime_ns, stat.st_size) for name, stat in files)


@most_results(8)
def readable_records(
    store: RecordStore[Kept], identity: str
) -> tuple[tuple[Kept, ...], tuple[StatsError, ...]]:
    """The records of a model, and the errors of unreadable files."""
    problems: list[StatsError] = []
    return tuple(store.records(identity, problems.append)), tuple(problems)


class OfRecords(Generic[Kept, Result]):
    """A function of the readable records of a model, which keeps its results until a file changes.

    One command or page asks several times.
    """

    def __init__(self, function: Callable[[Sequence[Kept]], Result], most: int = 4) -> None:
        self._function, self._most = function, most
        self._known: dict[tuple[object, ...], Result] = {}

    def __call__(self, store: RecordStore[Kept], identity: str) -> Result:
        """The result for the files of this moment."""
        key = type(store), repr(store.files(identity)), identity
        if key in self._known:
            return self._known[key]
        records, problems = readable_records(store, identity)
        result = self._function(records)
        if not problems:  # what cannot be read may be readable in the same state later
            while len(self._known) >= self._most:
                self._known.pop(next(iter(self._known)), None)
            self._known[key] = result
        return result
