"""Job table: the SQLite file, its schema, and the rows as `Job` values."""

import contextlib
import json
import sqlite3
import time
from collections.abc import Collection, Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

from analysis.errors import JobError
from analysis.files.json_text import parse_json
from app.jobs.model import Job, JobState

SCHEMA_VERSION = 3
# What an earlier version's table lacks. Its own columns stay, as its jobs may still run; one that
# rows of this version lack gets a default, for which SQLite has to make it again.
_UPGRADES = {
    2: (
        "ALTER TABLE jobs ADD COLUMN share REAL",
        "ALTER TABLE jobs ADD COLUMN seconds_left REAL",
        "ALTER TABLE jobs DROP COLUMN phase_start_done",
        "ALTER TABLE jobs ADD COLUMN phase_start_done INTEGER NOT NULL DEFAULT 0",
    )
}
# Longer than any lock is held: `tick` deletes partial output under it.
_BUSY_SECONDS = 30.0

# Field type of `Job` -> column type and allowed values; all others are text.
_STORED: dict[Any, tuple[str, tuple[type, ...]]] = {
    int: ("INTEGER NOT NULL", (int,)),
    int | None: ("INTEGER", (int, type(None))),
    float: ("REAL NOT NULL", (int, float)),
    float | None: ("REAL", (int, float, type(None))),
    dict[str, Any] | None: ("TEXT", (str, type(None))),
}
_COLUMNS = {field.name: _STORED.get(field.type, ("TEXT NOT NULL", (str,))) for field in fields(Job)}
_NAMES = ", ".join(_COLUMNS)


class JobTable:
    """The rows through one connection; inside a transaction unless only reading."""

    # Statements are built from column names and placeholders, never from values.

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def insert(self, job: Job) -> None:
        """Append a job."""
        marks = ", ".join(f":{name}" for name in _COLUMNS)
        values = {name: _encode(getattr(job, name)) for name in _COLUMNS}
        self._connection.execute(f"INSERT INTO jobs ({_NAMES}) VALUES ({marks})", values)  # noqa: S608

    def update(self, job_id: str, **values: Any) -> None:
        """Set some columns of a job."""
        if unknown := values.keys() - _COLUMNS.keys():
            raise ValueError(f"The job table has no columns {sorted(unknown)}.")
        changes = ", ".join(f"{name} = :{name}" for name in values)
        encoded = {name: _encode(value) for name, value in values.items()}
        statement = f"UPDATE jobs SET {changes} WHERE id = :job_id"  # noqa: S608
        self._connection.execute(statement, {**encoded, "job_id": job_id})

    def delete(self, job_id: str) -> None:
        """Remove a job's row."""
        self._connection.execute("DELETE FROM jobs WHERE id = ?", (job_id,))

    def starting_with(self, prefix: str) -> tuple[Job, ...]:
        """Jobs whose id starts with `prefix`, in order of submission."""
        return self._select("WHERE substr(id, 1, ?) = ? ORDER BY seq", len(prefix), prefix)

    def newest(self, limit: int, kinds: Collection[str] = ()) -> tuple[Job, ...]:
        """The last submitted jobs of these kinds (or all), newest first."""
        return self._select(f"{_of(kinds)}ORDER BY seq DESC LIMIT ?", *kinds, limit)

    def page(self, limit: int, first: int, kinds: Collection[str] = ()) -> tuple[Job, ...]:
        """Jobs of these kinds from `first` on: running, then newest first."""
        order = "ORDER BY state = ? DESC, seq DESC"
        # Sort ids first: whole rows are long.
        chosen = f"SELECT seq FROM jobs {_of(kinds)}{order} LIMIT ? OFFSET ?"  # noqa: S608
        running = JobState.RUNNING
        values: list[str | int] = [*kinds, running, limit, first, running]
        return self._select(f"WHERE seq IN ({chosen}) {order}", *values)

    def counts(self, kinds: Collection[str] = ()) -> dict[JobState, int]:
        """Number of jobs of these kinds per occurring state."""
        query = f"SELECT state, count(*) FROM jobs {_of(kinds)}GROUP BY state"  # noqa: S608
        count_by_state = dict(self._connection.execute(query, tuple(kinds)))
        return {state: count_by_state[state] for state in JobState if state in count_by_state}

    def queued(self, limit: int) -> tuple[Job, ...]:
        """The queued jobs that SLURM does not have, oldest first."""
        condition = "WHERE state = ? AND batch = '' ORDER BY seq LIMIT ?"
        return self._select(condition, JobState.QUEUED, limit)

    def in_batches(self) -> tuple[Job, ...]:
        """The unfinished jobs that were handed to SLURM, oldest first."""
        condition = "WHERE state IN (?, ?) AND batch != '' ORDER BY seq"
        return self._select(condition, JobState.QUEUED, JobState.RUNNING)

    def running_on(self, host: str) -> tuple[Job, ...]:
        """The jobs that workers on `host` hold outside SLURM, oldest first."""
        condition = "WHERE state = ? AND host = ? AND batch = '' ORDER BY seq"
        return self._select(condition, JobState.RUNNING, host)

    def _select(self, condition: str, *values: str | int) -> tuple[Job, ...]:
        query = f"SELECT {_NAMES} FROM jobs {condition}"  # noqa: S608
        return tuple(_decode(row) for row in self._connection.execute(query, values))


def _of(kinds: Collection[str]) -> str:
    marks = ", ".join("?" for _ in kinds)
    return f"WHERE kind IN ({marks}) " if kinds else ""


def create(path: Path, *, shared: bool = False) -> None:
    """Create the job table at `path` if missing.

    If several machines write to it (`shared`), it uses the slower rollback journal: a write-ahead
    log needs shared memory.
    """
    with contextlib.suppress(FileExistsError):
        # Never open an existing file here: closing it would drop the SQLite locks that another
        # thread of this process holds on it.
        path.touch(mode=0o600, exist_ok=False)
    with connect(path) as connection:
        # Read first: every page and command opens the table, mostly without writing.
        if _version(connection) != SCHEMA_VERSION:
            connection.execute("BEGIN IMMEDIATE")
            version = _version(connection)  # another process may have created it
            if version not in (0, *_UPGRADES, SCHEMA_VERSION):
                raise JobError(
                    f"The job table {path} has schema {version}; this program reads "
                    f"{SCHEMA_VERSION}. Use the version of the program that made it, or another "
                    "job table."
                )
            if version == 0:
                columns = [f"{name} {stored}" for name, (stored, _) in _COLUMNS.items()]
                order = "seq INTEGER PRIMARY KEY AUTOINCREMENT"
                every = ", ".join((order, *columns))
                connection.execute(f"CREATE TABLE jobs ({every}, UNIQUE (id))")
                connection.execute("CREATE INDEX jobs_by_state ON jobs (state, seq)")
            for change in _UPGRADES.get(version, ()):
                connection.execute(change)
            connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
            connection.execute("COMMIT")
        _switch_journal(connection, "DELETE" if shared else "WAL")


def _version(connection: sqlite3.Connection) -> int:
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    return int(version)


@contextlib.contextmanager
def connect(path: Path) -> Iterator[sqlite3.Connection]:
    """A connection for one operation: cheap, safe in any thread and after a fork."""
    try:
        # mode=rw: a table that was deleted is an error, not a new empty file.
        uri = f"{path.absolute().as_uri()}?mode=rw"
        connection = sqlite3.connect(uri, uri=True, timeout=_BUSY_SECONDS, isolation_level=None)
        with contextlib.closing(connection):
            # A power cut may lose the last writes, but never corrupts the file.
            connection.execute("PRAGMA synchronous = NORMAL")
            yield connection
    except (sqlite3.Error, UnicodeDecodeError) as error:
        reason = " ".join(str(error).split())[:200]
        raise JobError(f"The job table {path} cannot be used: {reason}.") from error


@contextlib.contextmanager
def transaction(path: Path) -> Iterator[JobTable]:
    """The table under the write lock; an exception undoes everything."""
    with connect(path) as connection:
        connection.execute("BEGIN IMMEDIATE")
        # Closing the connection without a commit rolls back.
        yield JobTable(connection)
        connection.execute("COMMIT")


def _switch_journal(connection: sqlite3.Connection, mode: str) -> None:
    # SQLite does not wait for this lock, and several processes may race for it.
    deadline = time.monotonic() + _BUSY_SECONDS
    while True:
        try:
            connection.execute(f"PRAGMA journal_mode = {mode}")
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
            time.sleep(0.01)
        else:
            return


def canonical_json(value: object) -> str:
    """The canonical JSON of `value`: sorted keys, no spaces, ASCII."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def _encode(value: Any) -> str | int | float | None:
    if isinstance(value, (dict, tuple)):
        return canonical_json(value)
    return str(value) if isinstance(value, Path) else value


def _decode(row: tuple[Any, ...]) -> Job:
    values = dict(zip(_COLUMNS, row, strict=True))
    result = values["result"]
    try:
        for name, value in values.items():
            _check_type(name, value)
        parsed = {
            "state": JobState(values["state"]),
            "request": dict(parse_json(values["request"])),
            "partials": tuple(map(str, list(parse_json(values["partials"])))),
            "log_path": Path(values["log_path"]),
            "result": None if result is None else dict(parse_json(result)),
        }
    except (ValueError, TypeError) as error:
        raise JobError(
            f"The job {values['id']!r} in the job table is damaged: {error}. Move the table away "
            "to start a new one."
        ) from error
    return Job(**{**values, **parsed})


def _check_type(name: str, value: object) -> None:
    # SQLite stores any type in any column.
    if not isinstance(value, _COLUMNS[name][1]):
        raise TypeError(f"{name} is {'missing' if value is None else repr(value)}")
