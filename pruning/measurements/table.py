"""The table: the shards of one or more statistics directories, read as one.

Of two blocks of the same numbers the first counts: those of the first folder, by file name.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from analysis.errors import StatsError
from analysis.files.durable import make_folder, sync_file
from analysis.files.locking import locked
from analysis.files.naming import digest_of
from analysis.progress import Progress
from analysis.stats.places import folder_of
from pruning.measurements.block import Block, Key, SampleSet
from pruning.measurements.shards import (
    FOLDER,
    Line,
    State,
    append,
    own_shard,
    refusals,
    shard,
    shard_paths,
    state_of,
)
from pruning.measures.result import MEASURES, SampleSums


@dataclass(frozen=True, slots=True, eq=False)
class PlanSums:
    """What is known of one plan on a whole set of samples."""

    kept: tuple[int, ...]  # experts or neurons that stay in each layer with experts
    samples: tuple[str, ...]  # ids, in the order of the set
    sums: Mapping[str, SampleSums]  # by measure
    made: Mapping[str, Any] = field(default_factory=dict)  # how, see `Block`

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PlanSums) and self._plain == other._plain

    def __hash__(self) -> int:
        return hash((self.kept, self.samples))

    @property
    def _plain(self) -> object:
        values = {
            name: (sum_.sums.tolist(), sum_.counts.tolist(), sum_.documents)
            for name, sum_ in self.sums.items()
        }
        return self.kept, self.samples, values

    def blocks(
        self, model: str, plan: str, where: SampleSet, made: Mapping[str, Any]
    ) -> list[Block]:
        """Its sums as blocks: one for all measures of the same positions."""
        alike = defaultdict[bytes, dict[str, SampleSums]](dict)
        for name, sum_ in self.sums.items():
            alike[sum_.counts.tobytes()][name] = sum_
        count = len(self.samples)
        return [
            Block(model, plan, self.kept, where, count, self.samples, sums, made)
            for sums in alike.values()
        ]

    def joined(self, new: PlanSums) -> PlanSums:
        """Both; of measures that both have, the new sums."""
        return replace(self, sums={**self.sums, **new.sums})

    def without(self, measures: Iterable[str]) -> PlanSums:
        """The others of its sums."""
        return replace(
            self, sums={name: sum_ for name, sum_ in self.sums.items() if name not in measures}
        )


_ANY = None  # in place of a model's identity: lines of all models are read


@dataclass(eq=False)
class _Rows:
    """What the shards have of one model, or of all."""

    states: Mapping[Path, State]  # of the shards, when they were read
    index: dict[Key, list[Line | Block]]
    problems: list[StatsError]  # of unreadable lines


@dataclass(eq=False)
class Measurements:
    """The table of one or more statistics directories; new blocks go to the first.

    The rows of a model are read when they are asked for.
    """

    directories: Sequence[Path]
    _appended: dict[Path, None] = field(default_factory=dict, init=False)  # shards, not synced
    _rows: dict[str | None, _Rows] = field(default_factory=dict, init=False)  # by model

    def __post_init__(self) -> None:
        self.directories = tuple(self.directories)

    @property
    def folder(self) -> Path:
        """Where pieces of work are claimed."""
        return self.directories[0] / FOLDER

    @property
    def shards(self) -> list[Path]:
        """The files, in the order in which their blocks count."""
        return shard_paths(self.directories)

    def refresh(self) -> None:
        """Read what other processes have written since."""
        # A file that could not be read may be readable in the same state later.
        self._rows = {
            model: rows
            for model, rows in self._rows.items()
            if not rows.problems and rows.states == self._states(model)
        }

    def _states(self, model: str | None) -> dict[Path, State]:
        paths = shard_paths(self.directories, model)
        return {path: state for path in paths if (state := state_of(path))}

    def _rows_of(self, model: str | None) -> _Rows:
        """The rows of a model, or of all if these are known."""
        if rows := self._rows.get(_ANY) or self._rows.get(model):
            return rows
        index, problems = defaultdict[Key, list[Line | Block]](list), list[StatsError]()
        states = self._states(model)
        for path, state in states.items():
            for line in shard(path, model).lines(state):
                if isinstance(line, StatsError):
                    problems.append(line)
                else:
                    index[line.key].append(line)
        self._rows[model] = _Rows(states, dict(index), problems)
        return self._rows[model]

    @property
    def problems(self) -> list[StatsError]:
        """Why lines cannot be read, whatever model they are of."""
        self._rows_of(_ANY)
        rows = self._rows.values()
        return list({str(problem): problem for of in rows for problem in of.problems}.values())

    def problems_of(self, model: str) -> list[StatsError]:
        """Why lines cannot be read, of shards that have lines of a model."""
        return self._rows_of(model).problems

    def notes(self, model: str) -> Iterator[Progress]:
        """What cannot be read, which is measured again, as lines for the log of a task."""
        for problem in self.problems_of(model):
            yield Progress("reading measurements", 0, 0, note=str(problem))

    def blocks(self, model: str, plan: str, dtype: str) -> list[Block]:
        """All blocks of a plan in this dtype."""
        blocks, rows = [], self._rows_of(model)
        for entry in rows.index.get((model, plan, dtype), ()):
            block = entry.block if isinstance(entry, Line) else entry
            if not isinstance(block, StatsError):
                blocks.append(block)
            elif block not in rows.problems:
                rows.problems.append(block)
        return blocks

    def of_plans(self, model: str, plans: Iterable[str], where: SampleSet) -> dict[str, PlanSums]:
        """What is known of each of these plans on the whole of a set of samples.

        Of what was measured in several ways, all that was measured as the first plan comes first,
        so that plans are compared as one machine gives them.
        """
        known, way = dict[str, PlanSums](), None
        for plan in plans:
            blocks = self.blocks(model, plan, where.dtype)
            alike = [block for block in blocks if way in (None, way_made(block.made))]
            if sums := merged([*alike, *blocks], where):
                known[plan] = sums
                way = way or way_made(sums.made)
        return known

    def add_plans(
        self,
        model: str,
        plans: Mapping[str, PlanSums],
        where: SampleSet,
        made: Mapping[str, Any],
        *,
        in_any_way: bool = False,
    ) -> None:
        """Append what is not known yet of what was measured on a whole set of samples.

        What was measured in another way is another number, see `way_made`, unless any will do.
        """
        self.refresh()
        blocks = []
        for plan, sums in plans.items():
            known = self.blocks(model, plan, where.dtype)
            if not in_any_way:
                known = [block for block in known if way_made(block.made) == way_made(made)]
            there = merged(known, where)
            new = sums.without(there.sums) if there else sums
            blocks += new.blocks(model, plan, where, made)
        if blocks:
            self.add(blocks)

    def by_sample(
        self,
        model: str,
        plan: str,
        dtype: str,
        measures: Sequence[str],
        is_alike: Callable[[Block], bool] = lambda _: True,
    ) -> dict[str, tuple[tuple[float, ...], int]]:
        """Id of a sample -> the sums of these measures, and the count, of a plan on any set.

        For measures that draw nothing. `is_alike`: of blocks of which this holds alone.
        """
        known: dict[str, tuple[tuple[float, ...], int]] = {}
        for block in filter(is_alike, self.blocks(model, plan, dtype)):
            if all(name in block.sums for name in measures):
                columns = [block.sums[name].sums.tolist() for name in measures]
                counts = block.sums[measures[0]].counts.tolist()
                for sample, count, *sums in zip(block.samples, counts, *columns, strict=True):
                    known.setdefault(sample, (tuple(sums), count))
        return known

    def add(self, blocks: Sequence[Block], *, sync: bool = True) -> None:
        """Append blocks to the shard of this process; `sync`: they survive a loss of power too.

        Raises:
            StatsError: they cannot be written, or a number is none; the shard is as it was.
        """
        by_model = defaultdict[str, list[bytes]](list)
        try:
            for block in blocks:
                by_model[block.model].append(block.to_line())
        except ValueError as error:
            raise StatsError(
                "A measure is no finite number; the model gives infinite or undefined logits, "
                "perhaps for lack of range: try --dtype bfloat16 or float32."
            ) from error
        for model, lines in by_model.items():
            path = own_shard(folder_of(self.directories[0], model) / FOLDER)
            with refusals(path):
                make_folder(path.parent)
                append(path, b"".join(lines), sync=sync)
            if not sync:
                self._appended[path] = None
        for block in blocks:
            if rows := self._rows.get(_ANY) or self._rows.get(block.model):
                key = block.model, block.plan, block.where.dtype
                rows.index.setdefault(key, []).append(block)

    def sync(self) -> None:
        """Make all blocks that this process appended survive a loss of power.

        Raises:
            StatsError: the disk refuses.
        """
        while self._appended:
            path = next(iter(self._appended))
            if path.is_file():
                with refusals(path):
                    sync_file(path)
            del self._appended[path]

    @contextmanager
    def claimed(self, **piece: object) -> Iterator[None]:
        """Keep other processes from measuring the same piece of work, as it names it.

        Raises:
            filelock.Timeout: another process measures it.
        """
        with locked(self.folder / digest_of(piece)[:16]):
            yield


def way_made(made: Mapping[str, Any]) -> tuple[object, object]:
    """What changes last bits, in bfloat16 more: the device, and how many samples ran at once."""
    return made.get("device"), made.get("batch_size")


def merged(blocks: Iterable[Block], where: SampleSet) -> PlanSums | None:
    """What blocks of one plan say of the whole of a set of samples; None if nothing."""
    first: Block | None = None
    sums: dict[str, SampleSums] = {}
    for block in blocks:
        if not block.is_whole or block.where.digest != where.digest:
            continue
        first = first or block
        for name, sum_ in block.sums.items():
            if block.where.seed == where.seed or not MEASURES[name].draws:
                sums.setdefault(name, sum_)
    return PlanSums(first.kept, first.samples, sums, first.made) if first and sums else None
