"""search.jsonl: every score of a search as soon as it is known, from which the search goes on.

The first line says which search it is; each further line is a candidate with its score, or a
generation that is complete. Scores are all that a search cannot draw again.
"""

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from filelock import Timeout

from analysis.errors import PlanError
from analysis.json_text import parse_json
from pruning.allocation import Removed
from pruning.append_log import (
    AppendLog,
    appending,
    damaged,
    locked,
    parsed_lines,
    plain_json,
    whole_lines,
)
from pruning.search.evolution import Candidate
from pruning.search.scores import Score

SCHEMA_VERSION = 1
LOG_NAME = "search.jsonl"
Scores = dict[Removed, Score]


class SearchLog:
    """The open log of a search; without a file it writes nothing, as where another process does."""

    def __init__(self, scores: Scores, lines: AppendLog | None = None) -> None:
        self._lines = lines or AppendLog()
        self.scores = scores
        """Scores that the log holds: removed -> score."""

    def score(self, candidate: Candidate, score: Score) -> None:
        """Append a candidate's score; it survives the end of this process."""
        self.scores[candidate.removed] = score
        self._lines.append(
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
        self._lines.append({"complete": dict(summary)})
        self._lines.sync()


@contextmanager
def open_log(path: Path, header: Mapping[str, Any]) -> Iterator[SearchLog]:
    """The log at this place, continued if it is of this search, else begun.

    The header is plain JSON of all that decides the search; the folder is made.
    """
    first = {"schema_version": SCHEMA_VERSION, "search": plain_json(header)}
    scores: Scores = {}
    try:
        with locked(path):
            whole = whole_lines(path)
            if whole:
                _check_header(path, whole[0], first)
            for number, raw in parsed_lines(path, whole):
                try:
                    if "complete" not in raw:
                        scores[tuple(map(int, raw["removed"]))] = _score(raw)
                except (ValueError, KeyError, TypeError, OverflowError) as error:
                    raise damaged(path, number) from error
            with appending(path, whole, first) as lines:
                yield SearchLog(scores, lines)
    except Timeout as error:
        raise PlanError(f"Another process is searching in {path.parent}; wait for it.") from error


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
