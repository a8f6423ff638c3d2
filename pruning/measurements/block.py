"""A block: measures of one plan on samples of one set. One line of a shard, and its only format."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

import numpy as np

from analysis.files.json_text import parse_json_once
from pruning.measures.result import SampleSums, check_possible

ORIGINAL: Final = "original"  # in place of a plan's digest: the model as it is
SEAL: Final = "sha256"  # the last field of a line: of all before it
COLUMNS: Final = (
    "model",
    "plan",
    "kept",
    "dtype",
    "seed",
    "corpus",
    "samples",
    "num_samples",
    "measure",
    "sample",
    "document",
    "count",
    "sum",
    "made",
)


@dataclass(frozen=True, slots=True)
class SampleSet:
    """A set of samples, and what decides numbers on it besides model and plan."""

    corpus: str  # its name
    digest: str  # of the samples
    dtype: str
    seed: int  # of measures that draw, see `Measure.draws`


@dataclass(frozen=True, slots=True, eq=False)
class Block:
    """What was measured of one plan on some samples of a set: sums over their positions."""

    model: str  # identity of the original model
    plan: str  # digest, or ORIGINAL
    kept: tuple[int, ...]  # experts or neurons that stay in each layer with experts
    where: SampleSet
    num_samples: int  # of the set
    samples: tuple[str, ...]  # ids, see `sample_ids`
    sums: Mapping[str, SampleSums]  # by measure, all with the same counts
    made: Mapping[str, Any]  # how: device, batch size, versions, `layers` that ran, `seconds`

    @property
    def is_whole(self) -> bool:
        """Whether it is of all samples of the set, which are in their order then."""
        return len(self.samples) == self.num_samples

    def to_line(self) -> bytes:
        """The line, sealed; for `pandas.read_json(shard, lines=True, precise_float=True)`."""
        some = next(iter(self.sums.values()))
        values = (
            self.model,
            self.plan,
            self.kept,
            self.where.dtype,
            self.where.seed,
            self.where.corpus,
            self.where.digest,
            self.num_samples,
            tuple(self.sums),
            self.samples,
            some.documents or (None,) * len(self.samples),
            some.counts.tolist(),
            [sum_.sums.tolist() for sum_ in self.sums.values()],
            dict(self.made),
        )
        raw = dict(zip(COLUMNS, values, strict=True))
        body = json.dumps(raw, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
        return body[:-1] + _seal(body[:-1]) + b"\n"

    @classmethod
    def from_line(cls, line: bytes) -> Block:
        """The block in a line; a ValueError says what cannot be."""
        raw = parse_json_once(_unsealed(line) + b"}")
        if tuple(raw) != COLUMNS:
            raise ValueError(f"it has other fields than {', '.join(COLUMNS)}")
        where = SampleSet(*(_of(raw[name], kind, name) for name, kind in _WHERE))
        samples = _tuple_of(raw, "sample", str)
        documents = _documents(raw["document"])
        counts, num_samples = (
            _tuple_of(raw, "count", int),
            _of(raw["num_samples"], int, "num_samples"),
        )
        if not len(samples) == len(documents or samples) == len(counts) <= num_samples:
            raise ValueError("its samples, documents and counts are not equally many")
        if not samples or min(counts) < 1 or max(counts) > _MOST_POSITIONS:
            raise ValueError("a sample has no positions, or too many")
        kept = _tuple_of(raw, "kept", int)
        if min(kept, default=0) < 0:
            raise ValueError("a layer keeps less than nothing")
        return cls(
            _of(raw["model"], str, "model"),
            _of(raw["plan"], str, "plan"),
            kept,
            where,
            num_samples,
            _shared(samples),
            _sums(_tuple_of(raw, "measure", str), _rows(raw["sum"]), counts, documents),
            _of(raw["made"], dict, "made"),
        )


_MOST_POSITIONS = 1 << 40  # of a sample
_WHERE = (("corpus", str), ("samples", str), ("dtype", str), ("seed", int))


def _seal(body: bytes) -> bytes:
    return f',"{SEAL}":"{hashlib.sha256(body).hexdigest()}"}}'.encode()


SEAL_BYTES: Final = len(_seal(b"")) + 1  # with the end of the line


def _unsealed(line: bytes) -> bytes:
    """A line without its seal; a ValueError if it is not what was written."""
    body, seal = line[:-SEAL_BYTES], line[-SEAL_BYTES:]
    if seal != _seal(body) + b"\n":
        raise ValueError(f"its values are not those that were written; its {SEAL} differs")
    return body


Key = tuple[str, str, str]  # model, plan, dtype
_HEAD = re.compile(
    rb'\{"model":"([^"\\]*)","plan":"([^"\\]*)","kept":\[[-\d,]*\],"dtype":"([^"\\]*)",'
)


def line_key(line: bytes) -> Key:
    """What a line is of, without the time that parsing it takes; a ValueError if it is damaged."""
    if match := _HEAD.match(_unsealed(line)):
        model, plan, dtype = (part.decode() for part in match.groups())
        return model, plan, dtype
    raise ValueError(f"it does not begin with {', '.join(COLUMNS[:4])}")


@lru_cache(maxsize=256)
def _shared(samples: tuple[str, ...]) -> tuple[str, ...]:
    """Equal ids as one object, for the many blocks of one set."""
    return samples


def _of(value: Any, kind: type, name: str) -> Any:
    if type(value) is not kind:
        raise ValueError(f"{name} is {value!r}")
    return value


def _tuple_of(raw: Mapping[str, Any], name: str, kind: type) -> tuple[Any, ...]:
    values = _of(raw[name], list, name)
    if strange := [value for value in values if type(value) is not kind]:
        raise ValueError(f"{name} has {strange[0]!r}")
    return tuple(values)


def _documents(values: Any) -> tuple[int, ...] | None:
    """The document of each sample; None if they are unknown, as of windows of one text."""
    if isinstance(values, list) and not any(value is not None for value in values):
        return None
    return _tuple_of({"document": values}, "document", int)


def _rows(values: Any) -> list[tuple[float, ...]]:
    return [_tuple_of({"sum": row}, "sum", float) for row in _of(values, list, "sum")]


def _sums(
    measures: Sequence[str],
    rows: Sequence[Sequence[float]],
    counts: tuple[int, ...],
    documents: tuple[int, ...] | None,
) -> dict[str, SampleSums]:
    if not measures or [len(row) for row in rows] != [len(counts)] * len(measures):
        raise ValueError("it has not one sum for each measure and sample")
    values = np.array(rows, dtype=np.float64)
    count = np.array(counts, dtype=np.int64)
    for name, means in zip(measures, values / count, strict=True):
        check_possible(name, float(means.min()), float(means.max()))
    with np.errstate(over="ignore"):
        if not np.isfinite(values.sum(axis=1)).all():
            raise ValueError("its sums are too large to add up")
    return {
        name: SampleSums(sums, count, documents)
        for name, sums in zip(measures, values, strict=True)
    }
