"""search.jsonl: every score of a search as soon as it is known, from which the search goes on.

The first line says which search it is; each further line is a candidate with its score, or a
generation that is complete. Scores are all that a search cannot draw again.
"""

import json
import math
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from io import RawIOBase
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock, Timeout

from analysis.durable import PARTIAL
from analysis.errors import PlanError
from analysis.json_text import parse_json
from pruning.search.evolution import Candidate
from pruning.search.scores import Score
from pruning.search.space import Removed

SCHEMA_VERSION = 1
LOG_NAME = "search.jsonl"
Scores = dict[Removed, Score]


class SearchLog:
    """The open log of a search; without a file it writes nothing, as where another process does."""

    def __init__(self, scores: Scores, file: RawIOBase | None = None) -> None:
        self._file = file
        self.scores = scores
        """Scores that the log holds: removed -> score."""

    def score(self, candidate: Candidate, score: Score) -> None:
        """Append a candidate's score; it survives the end of this process."""
        self.scores[candidate.removed] = score
        self._append(
            {
                "candidate": candidate.number,
                "generation": candidate.generation,
                "parent": candidate.parent,
                "origin": candidate.origin,
                "removed": list(candidate.removed),
                "fitness": score.mean if score.is_complete else None,
                "samples": score.samples.tolist(),
                "layers": score.layers,
                "seconds": round(score.seconds, 4),
            }
        )

    def generation(self, summary: Mapping[str, Any]) -> None:
        """Append what became of a generation, for people; survives a loss of power."""
        self._append({"complete": dict(summary)})
        if self._file is not None:
            os.fsync(self._file.fileno())

    def _append(self, line: Mapping[str, Any]) -> None:
        if self._file is not None:
            self._file.write((json.dumps(line) + "\n").encode())


@contextmanager
def open_log(path: Path, header: Mapping[str, Any]) -> Iterator[SearchLog]:
    """The log at this place, continued if it is of this search, else begun.

    The header is plain JSON of all that decides the search; the folder is made.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(path.with_name(f".{path.name}{PARTIAL}.lock"), timeout=0)
    try:
        with lock:
            try:
                yield from _opened(path, header)
            finally:
                Path(lock.lock_file).unlink(missing_ok=True)
    except Timeout as error:
        raise PlanError(f"Another process is searching in {path.parent}; wait for it.") from error


def _opened(path: Path, header: Mapping[str, Any]) -> Iterator[SearchLog]:
    lines = path.read_bytes().splitlines(True) if path.is_file() else []
    whole = [line for line in lines if line.endswith(b"\n")]
    first = {"schema_version": SCHEMA_VERSION, "search": plain_json(header)}
    scores: Scores = {}
    if whole:
        _check_header(path, whole[0], first)
    for number, line in enumerate(whole[1:], 2):
        try:
            raw = parse_json(line)
            if "complete" not in raw:
                scores[tuple(map(int, raw["removed"]))] = _score(raw)
        except (ValueError, KeyError, TypeError, OverflowError) as error:
            raise PlanError(
                f"{path} is damaged in line {number}; remove the lines from there on to go on "
                "from what is before."
            ) from error
    # Unbuffered: a line is with the system before anything else happens.
    with path.open("r+b" if whole else "wb", buffering=0) as file:
        # A line that the end of a process cut short goes.
        file.truncate(sum(map(len, whole)))
        file.seek(0, os.SEEK_END)
        log = SearchLog(scores, file)
        if not whole:
            log._append(first)
        yield log


def plain_json(value: Any) -> Any:
    """A value as a file gives it back: a tuple is a list."""
    return json.loads(json.dumps(value))


def _check_header(path: Path, line: bytes, expected: Mapping[str, Any]) -> None:
    try:
        found = parse_json(line)
    except ValueError as error:
        raise PlanError(f"{path} is no log of a search; choose another --out.") from error
    if found == expected:
        return
    was = found.get("search") if isinstance(found, dict) else None
    was = was if isinstance(was, dict) else {}
    changed = sorted(key for key, value in expected["search"].items() if was.get(key) != value)
    raise PlanError(
        f"{path} is the log of another search (it differs in {', '.join(changed) or 'its form'}); "
        "choose another --out, or remove the file."
    )


def _score(raw: Mapping[str, Any]) -> Score:
    samples = np.array(raw["samples"], dtype=np.float64)
    # Their mean must be a number too, which an infinite sum has not.
    if samples.ndim != 1 or not len(samples) or not math.isfinite(math.fsum(samples)):
        raise ValueError("a fitness is no finite number")
    is_complete = raw["fitness"] is not None
    return Score(samples, is_complete, int(raw["layers"]), float(raw["seconds"]))
