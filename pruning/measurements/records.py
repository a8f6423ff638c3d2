"""Records whose numbers lie in the table: a record says of what they are, and how it was made."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Final, Self, TypeVar

from pydantic import PrivateAttr

from analysis.errors import StatsError
from analysis.files.naming import now
from pruning.measurements.block import SampleSet
from pruning.measurements.shards import FOLDER
from pruning.measurements.table import Measurements, PlanSums
from pruning.measures.store import Kept, Record, RecordStore, RunFacts, SampleFacts

# What a record says of rows that another has measured.
_HOW: Final = ("created_at", "device", "batch_size", "seconds", "system", "versions")


class MeasuredRecord(Record):
    """A set of plans on one set of samples, with their numbers once these are known."""

    corpus: SampleFacts  # of the samples: `name`, `digest`, and which documents were drawn
    settings: RunFacts  # `dtype`, `seed` (of the bootstrap, and of measures that draw)
    _numbers: Mapping[str, PlanSums] = PrivateAttr(default_factory=dict)

    @property
    def numbers(self) -> Mapping[str, PlanSums]:
        """By plan, what is known."""
        return self._numbers

    @property
    def is_measured(self) -> bool:
        """Whether it was measured; only such records have a file."""
        return bool(self.made)

    @property
    def plans(self) -> Sequence[str]:
        """The plans that it is of, as the table names them."""
        raise NotImplementedError

    @property
    def lacking(self) -> str:
        """A plan or measure that it speaks of and has no numbers of; empty if there is none."""
        return next((plan for plan in self.plans if plan not in self.numbers), "")

    @property
    def where(self) -> SampleSet:
        """What the numbers are on."""
        corpus, settings = self.corpus, self.settings
        return SampleSet(corpus["name"], corpus["digest"], settings["dtype"], settings["seed"])

    def with_numbers(self, plans: Mapping[str, PlanSums]) -> Self:
        """The record with these numbers besides those that it has."""
        record = self.model_copy()
        record._numbers = {**self._numbers}
        for plan, new in plans.items():
            known = self._numbers.get(plan)
            record._numbers[plan] = known.joined(new) if known else new
        return record

    def with_known(self) -> Self:
        """The record of numbers that are known already, made as the first of them."""
        if self.made:
            return self
        made = next(iter(self.numbers.values())).made
        how = {name: made[name] for name in _HOW if name in made}
        return self.model_copy(update={"made": {"created_at": now(), **how}})


class TableStore(RecordStore[Kept]):
    """Records whose numbers lie in the table, of one or more statistics directories."""

    beside = FOLDER

    @cached_property
    def table(self) -> Measurements:
        """The table that the numbers lie in."""
        return Measurements(self._directories)

    def records(
        self, identity: str | None = None, on_problem: Callable[[StatsError], None] | None = None
    ) -> list[Kept]:
        """As of any store; records without their numbers, and damaged lines, are problems."""
        self.table.refresh()
        if on_problem:
            problems = self.table.problems if identity is None else self.table.problems_of(identity)
            for problem in problems:
                on_problem(problem)
        return super().records(identity, on_problem)

    def _readings(self, identity: str | None) -> Iterator[Kept | StatsError]:
        for record in super()._readings(identity):
            yield record if isinstance(record, StatsError) else self._whole(record)

    def _whole(self, record: Kept) -> Kept | StatsError:
        record = self._joined(record)
        if not (name := self._lacking(record)):
            return record
        return StatsError(
            f"The {record.word} {record.record_id} has no numbers of {name} in the table of "
            f"measurements; make it again with `moeprune {record.command}`."
        )

    def _joined(self, record: Kept) -> Kept:
        """The record with its numbers, of kinds that hold them."""
        return record

    def _lacking(self, record: Kept) -> str:
        """A plan or measure that a record speaks of and has no numbers of; empty: there is none."""
        raise NotImplementedError


Measured = TypeVar("Measured", bound=MeasuredRecord)


class MeasuredStore(TableStore[Measured]):
    """Such records, with their numbers."""

    def find(self, new: Measured) -> Measured:
        """The stored record with this digest, or `new` itself, with all numbers that are known."""
        self.table.refresh()
        return self._joined(super().find(new))

    def save(self, record: Measured) -> Path:
        """Write a record, replacing the stored one, and before it numbers that the table lacks."""
        model, numbers = record.model.identity, record.numbers
        self.table.add_plans(model, numbers, record.where, record.made, in_any_way=True)
        return super().save(record)

    def _joined(self, record: Measured) -> Measured:
        known = self.table.of_plans(record.model.identity, record.plans, record.where)
        return record.with_numbers(known)

    def _lacking(self, record: Measured) -> str:
        return record.lacking
