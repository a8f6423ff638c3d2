"""Rows of the table of measurements: those that records read, which ship, and what is forgotten."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from analysis.errors import StatsError
from analysis.files.durable import write_durably
from analysis.stats.places import record_folders
from pruning.measurements.block import Block, SampleSet
from pruning.measurements.records import MeasuredRecord, TableStore
from pruning.measurements.table import Measurements, PlanSums
from pruning.measures import points
from pruning.measures.result import MEASURES, SampleSums
from pruning.records.bins import BinsStore
from pruning.records.evaluation import EvaluationRecord, EvaluationStore
from pruning.records.sensitivity import SensitivityRecord, SensitivityStore
from pruning.records.subsets import SubsetStore

# Kinds of records whose numbers lie in the table.
STORES: Mapping[str, type[TableStore[Any]]] = {
    store.kind.folder: store
    for store in (BinsStore, EvaluationStore, SensitivityStore, SubsetStore)
}
_LOSS = "nll"


@dataclass(frozen=True)
class Whole:
    """The records of a kind in a statistics folder with their numbers, read when asked for."""

    folder: Path
    kind: str

    @cached_property
    def _store(self) -> TableStore[Any]:
        return STORES[self.kind]([self.folder])

    @cached_property
    def records(self) -> Mapping[str, MeasuredRecord | SensitivityRecord]:
        """By id.

        Raises:
            StatsError: a record or a line of the table cannot be read, or a record lacks numbers.
        """
        return {record.record_id: record for record in self._store.records(on_problem=_refuse)}

    def facts(self, name: str) -> dict[str, Any]:
        """A record as plain JSON, and the sums of its samples: a mean may hide a last digit."""
        sums: dict[str, dict[str, list[float]]] = {}
        for block in self._read_by(name):
            known = sums.setdefault(block.plan, {})
            for measure, sum_ in block.sums.items():
                known[measure] = [*known.get(measure, ()), *sum_.sums.tolist()]
        return {**self.records[name].to_dict(), "sums": sums}

    def blocks(self, names: Iterable[str]) -> list[Block]:
        """The rows that these records read, as one block for each plan and set of samples."""
        found: dict[tuple[str, str, SampleSet, int, tuple[str, ...]], PlanSums] = {}
        for block in (block for name in names for block in self._read_by(name)):
            key = block.model, block.plan, block.where, block.num_samples, block.samples
            sums = PlanSums(block.kept, block.samples, block.sums, block.made)
            found[key] = found[key].joined(sums) if key in found else sums
        blocks = (
            replace(block, num_samples=count)
            for (model, plan, where, count, _), sums in found.items()
            for block in sums.blocks(model, plan, where, sums.made)
        )
        return sorted(blocks, key=lambda block: (block.where.digest, block.plan, [*block.sums]))

    def _read_by(self, name: str) -> Iterator[Block]:
        record = self.records[name]
        if isinstance(record, SensitivityRecord):
            yield from _points(record, self._store.table)
        else:
            yield from _measured(record)


def whole_of(folder: Path, kind: str) -> Whole | None:
    """The records in a folder of records; None for kinds whose files hold their numbers."""
    return Whole(folder.parent, kind) if kind in STORES else None


def _refuse(problem: StatsError) -> None:
    raise problem


def _measured(record: MeasuredRecord) -> Iterator[Block]:
    """Each plan of a record with the sums of the measures that it tells of."""
    asked = record.measures if isinstance(record, EvaluationRecord) else (_LOSS,)
    rows = {MEASURES[name].row for name in asked}
    for plan, sums in record.numbers.items():
        some = sums.without(sums.sums.keys() - rows)
        yield from some.blocks(record.model.identity, plan, record.where, sums.made)


def _points(record: SensitivityRecord, table: Measurements) -> Iterator[Block]:
    """Each point on the samples of a record; its batches, by set, as one."""
    for plan in record.plans.values():
        wanted = dict.fromkeys(sample for sample, _ in record.samples)
        parts = defaultdict[SampleSet, list[Block]](list)
        for block in table.blocks(record.model.identity, plan, record.settings["dtype"]):
            if all(name in block.sums for name in points.MEASURES):
                parts[block.where].append(block)
        # Other sets may share samples: the smallest of which most are read is the record's own.
        for blocks in sorted(parts.values(), key=lambda part: _apart(part, wanted)):
            if some := _on(blocks, wanted):
                yield some
                for sample in some.samples:  # what another set has of it does not count
                    del wanted[sample]


def _apart(blocks: Sequence[Block], wanted: Collection[str]) -> tuple[int, int]:
    """How far a set is from these samples: those that it lacks, and its size."""
    known = {sample for block in blocks for sample in block.samples}
    return len({*wanted} - known), blocks[0].num_samples


def _on(blocks: Sequence[Block], wanted: Collection[str]) -> Block | None:
    """What blocks of one plan and set say of these samples, as one; None if nothing."""
    for block in blocks:  # measured at once: as it is, in the order of its set
        if set(block.samples) == set(wanted):
            return replace(block, sums={name: block.sums[name] for name in points.MEASURES})
    places: dict[str, tuple[Block, int]] = {}
    for block in blocks:
        for place, sample in enumerate(block.samples):
            places.setdefault(sample, (block, place))
    samples = tuple(sample for sample in wanted if sample in places)
    found = [places[sample] for sample in samples]
    if not found:
        return None
    first = found[0][0]
    sums = {}
    for name in points.MEASURES:
        parts = [(block.sums[name], place) for block, place in found]
        documents = [one.documents and one.documents[place] for one, place in parts]
        sums[name] = SampleSums(
            np.array([one.sums[place] for one, place in parts]),
            np.array([one.counts[place] for one, place in parts]),
            tuple(documents) if None not in documents else None,  # type: ignore[arg-type]
        )
    return replace(first, samples=samples, sums=sums)


def forget(folder: Path, leaving: Collection[Path]) -> None:
    """Take out of the table of a folder what no record reads; files `leaving` do not count.

    So what is measured next is measured anew, where no other record has the same rows. Nobody may
    write to the table meanwhile.
    """
    table, read = Measurements([folder]), _keys_read(folder, leaving)
    if table.problems:
        raise table.problems[0]
    for path in table.shards:
        lines = path.read_bytes().splitlines(keepends=True)
        kept = [line for line in lines if line.endswith(b"\n") and read & _keys(line)]
        if not kept:
            path.unlink()
        elif kept != lines:
            write_durably(path, b"".join(kept))


_Key = tuple[str, str, str, str]  # model, plan, dtype and digest of the set, or a sample


def _keys(line: bytes) -> set[_Key]:
    block = Block.from_line(line)
    of = block.model, block.plan, block.where.dtype
    return {(*of, sample) for sample in (block.where.digest, *block.samples)}


def _keys_read(folder: Path, leaving: Collection[Path]) -> set[_Key]:
    keys = set[_Key]()
    for kind, store in STORES.items():
        for path in (
            path for at in record_folders([folder]) for path in (at / kind).glob("*.json")
        ):
            if path not in leaving:
                record = store.kind.read(path)
                if isinstance(record, SensitivityRecord):
                    plans, parts = (
                        [*record.plans.values()],
                        [sample for sample, _ in record.samples],
                    )
                else:
                    plans, parts = [*record.plans], [record.where.digest]
                of = record.model.identity, record.settings["dtype"]
                keys |= {(of[0], plan, of[1], part) for plan in plans for part in parts}
    return keys
