"""Compares records with those that ship, to the last digit."""

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from tools.demo.orders import Key, Step
from tools.demo.work import ROOT, Stored, lasting, lines, stored

CACHED = "cached_stats"
Records = Mapping[Key, Sequence[Stored]]


def shipped(steps: Iterable[Step], root: Path = ROOT) -> Records:
    """The records that ship in the files of these steps, by key."""
    found = defaultdict[Key, list[Stored]](list)
    places = dict.fromkeys((step.ships, step.kind) for step in steps if step.ships)
    for place, kind in places:
        if place.endswith(".jsonl"):
            records = lines(root / place, kind) if (root / place).is_file() else iter(())
        else:
            records = _in_folder(root, kind)
        for record in records:
            found[record.key].append(record)
    return found


def _in_folder(root: Path, kind: str) -> Iterator[Stored]:
    return stored(root / CACHED, [kind])


def made(step: Step, folder: Path) -> list[Stored]:
    """The records of a step in a statistics folder."""
    keys = step.keys()
    return [record for record in stored(folder, [step.kind]) if record.key in keys]


def counterpart(record: Stored, others: Records) -> Stored | None:
    """The record of the same key, and of the same id where several have it."""
    rivals = others.get(record.key, ())
    return next((rival for rival in rivals if len(rivals) == 1 or rival.name == record.name), None)


@dataclass(frozen=True)
class Difference:
    """A field or a file in which two records differ."""

    name: str
    share: float = math.inf  # of the larger value, at most, if only numbers differ

    def __str__(self) -> str:
        return self.name if math.isinf(self.share) else f"{self.name} by {self.share:.0e}"


def differences(record: Stored, other: Stored) -> list[Difference]:
    """Where two records differ; dates, seconds, versions and ids of calibrations may."""
    found = list(_fields("", lasting(record.facts), lasting(other.facts)))
    files, others = ({file.name: file for file in one.files} for one in (record, other))
    found += [Difference(name) for name in sorted(files.keys() ^ others.keys())]
    for name in sorted(files.keys() & others.keys()):
        found += _of_files(files[name], others[name])
    return found


def _fields(name: str, one: Any, other: Any) -> Iterator[Difference]:
    if isinstance(one, dict) and isinstance(other, dict):
        for key in dict.fromkeys((*one, *other)):
            path = f"{name}.{key}" if name else str(key)
            if key in one and key in other:
                yield from _fields(path, one[key], other[key])
            else:
                yield Difference(path)
    elif isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        yield from _items(name, one, other)
    elif one != other and not (_is_nan(one) and _is_nan(other)):
        yield Difference(name, _share(one, other))


def _items(name: str, one: list[Any], other: list[Any]) -> Iterator[Difference]:
    """Differences of the items of two lists; of numbers, as a share of the largest."""
    if all(isinstance(value, float) for value in (*one, *other)):
        differ = [pair for pair in zip(one, other, strict=True) if [*_fields("", *pair)]]
        if differ:
            most = max(abs(a - b) for a, b in differ)
            yield Difference(name, most / max(map(abs, (*one, *other))))
        return
    shares = defaultdict[str, float](float)
    for pair in zip(one, other, strict=True):
        for field in _fields(name, *pair):
            shares[field.name] = max(shares[field.name], field.share)
    yield from (Difference(*entry) for entry in shares.items())


def _is_nan(value: Any) -> bool:
    return isinstance(value, float) and math.isnan(value)


def _share(one: Any, other: Any) -> float:
    if isinstance(one, float) and isinstance(other, float):
        return abs(one - other) / max(abs(one), abs(other))
    return math.inf


def _of_files(path: Path, other: Path) -> Iterator[Difference]:
    if path.read_bytes() == other.read_bytes():
        return
    if path.suffix != ".parquet":
        yield Difference(path.name)
        return
    # Writers may lay out the same table in other bytes.
    tables = [pq.read_table(file).to_pydict() for file in (path, other)]
    yield from _fields(path.name, *tables)
