"""Records of sensitivity: the order and corpus, next to a parquet file of the points."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from filelock import FileLock, Timeout

from analysis.corpora.account import COUNTS
from analysis.errors import StatsError
from analysis.files.durable import PARTIAL, written_durably
from analysis.files.json_text import parse_json
from analysis.files.naming import digest_of
from analysis.lazy import pa, pd
from analysis.model.moe_model import ModelRef, MoEModel
from analysis.stats.stored_tables import read_parquet, write_arrow
from pruning.measures.append_log import (
    AppendLog,
    appending,
    damaged,
    locked,
    parsed_lines,
    plain_json,
    whole_lines,
)
from pruning.measures.points import COLUMNS, Points
from pruning.measures.store import SEAL, Count, Record, RecordStore, check_seal, seal_of
from pruning.plan.plan import digest_word

if TYPE_CHECKING:
    from pruning.measures.drawn_samples import DrawnSamples


@dataclass(frozen=True, slots=True)
class OrderRef:
    """An order of experts or neurons."""

    criterion: str
    granularity: str
    digest: str  # of the order itself: criteria with equal orders share their curves
    # Sections of a `PlanSpec` that decide the order, as they were when it was measured first.
    spec: Mapping[str, Any] = field(default_factory=dict, compare=False)


class SensitivityRecord(Record):
    """The measurement of an order on a corpus; the numbers are in the parquet next to it."""

    folder = "sensitivity"
    word = "sensitivity"
    command = "sensitivity"
    measured = "points"

    order: Mapping[str, Any]  # see `OrderRef`
    corpus: Mapping[str, Any]  # name, and how samples were drawn; their ids are in the parquet
    layers: tuple[tuple[Count, Count], ...]  # decoder index and size of each layer with experts
    points: Count = 0  # measured allocations

    @classmethod
    def new(
        cls,
        model: MoEModel,
        order: OrderRef,
        sizes: Mapping[int, int],
        drawn_samples: DrawnSamples,
        dtype: str,
    ) -> SensitivityRecord:
        """A record without points; `sizes` are experts or neurons of each layer."""
        corpus = {"name": drawn_samples.sequences.corpus, **plain_json(drawn_samples.facts)}
        deciding = {
            "identity": model.identity,
            "granularity": digest_word(order.granularity),
            "order": order.digest,
            "corpus": {name: fact for name, fact in corpus.items() if name not in COUNTS},
            "dtype": dtype,
        }
        return cls.begun(
            ("sensitivity", order.criterion, Path(corpus["name"]).stem),
            deciding,
            model=ModelRef(model.name, model.identity),
            order=asdict(order),
            corpus=corpus,
            layers=tuple(sizes.items()),
            settings={"dtype": dtype},
        )


class SensitivityStore(RecordStore[SensitivityRecord]):
    """Sensitivity records of one or more statistics directories; new points go to the first.

    Points in progress are lines of logs, one log per batch of samples, in `<record>.blocks`. A
    process that measures a batch locks its log, so several processes share the work.
    """

    kind = SensitivityRecord

    def of_order(self, identity: str, digest: str) -> list[SensitivityRecord]:
        """The records of an order, newest first."""
        records = [each for each in self.records(identity) if each.order["digest"] == digest]
        return sorted(records, key=lambda each: (each.created_at, each.record_id), reverse=True)

    def points(self, record: SensitivityRecord, *, in_progress: bool = False) -> Points:
        """All points of a record from every folder; with `in_progress`, also of its logs."""
        points = Points(dict(record.layers))
        for folder in self._folders:
            path = folder / f"{record.record_id}.parquet"
            if path.is_file():
                self._read(path, points)
        if in_progress:
            for log in self.logs(record):
                _read_log(log, points)
        return points

    def _read(self, path: Path, points: Points) -> None:
        needed = {name: kind if kind != "object" else "" for name, kind in COLUMNS.items()}
        try:
            table = read_parquet(path, needed)
            seal = (table.schema.metadata or {}).get(SEAL.encode())
            check_seal(seal and seal.decode("ascii"), table.to_pydict())
            points.add_table(table.to_pandas())
        except (OSError, ValueError) as error:
            raise StatsError(
                f"{path} is damaged ({' '.join(str(error).split())}); remove it and measure again "
                "with `moeprune sensitivity`."
            ) from error

    def _blocks(self, record: SensitivityRecord) -> Path:
        return self._folders[0] / f"{record.record_id}.blocks"

    def logs(self, record: SensitivityRecord) -> list[Path]:
        """The logs of points in progress."""
        return sorted(self._blocks(record).glob("*.jsonl"))

    @contextmanager
    def block(
        self, record: SensitivityRecord, samples: Sequence[str], points: Points
    ) -> Iterator[AppendLog]:
        """The log of a batch, locked for this process; its points are added to `points` first.

        Raises:
            filelock.Timeout: another process measures this batch.
        """
        batch = {"record": record.digest, "samples": list(samples)}
        path = self._blocks(record) / f"{digest_of(batch)[:16]}.jsonl"
        header = {**batch, "documents": [points.document(sample) for sample in samples]}
        with locked(path):
            parquet = self._folders[0] / f"{record.record_id}.parquet"
            if parquet.is_file():  # another process may have finished in the meantime
                self._read(parquet, points)
            lines = _read_log(path, points)
            with appending(path, lines, header) as log:
                yield log

    def finish(self, record: SensitivityRecord, run_facts: Mapping[str, Any]) -> SensitivityRecord:
        """Gather the logs that nobody writes into the parquet; the resulting record."""
        folder = self._folders[0]
        folder.mkdir(parents=True, exist_ok=True)
        with FileLock(folder / f".{record.record_id}{PARTIAL}.lock") as lock, ExitStack() as locks:
            points, gathered = self.points(record), []
            for log in self.logs(record):
                try:
                    locks.enter_context(locked(log))
                except Timeout:
                    continue
                _read_log(log, points)
                gathered.append(log)
            if not len(points):  # refused or stopped before the first point
                return record
            with written_durably(folder / f"{record.record_id}.parquet") as draft:
                write_arrow(draft, sealed(points.table()))
            done = record.finished(run_facts, points=len(points))
            self.save(done)
            for log in gathered:
                log.unlink()
            Path(lock.lock_file).unlink(missing_ok=True)
        with suppress(OSError):  # another process writes there, or nothing was measured
            self._blocks(record).rmdir()
        return done


def sealed(table: pd.DataFrame) -> pa.Table:
    """A table of points with the seal of its content in the metadata of the schema."""
    content = pa.Table.from_pandas(table, preserve_index=False)
    seal = seal_of(content.to_pydict())
    return content.replace_schema_metadata({**content.schema.metadata, SEAL: seal})


def _read_log(path: Path, points: Points) -> list[bytes]:
    """The complete lines of a log; their points are added to `points`."""
    lines = whole_lines(path)
    try:
        header = parse_json(lines[0]) if lines else {"samples": [], "documents": []}
        samples = list(map(str, header["samples"]))
        points.add_documents(dict(zip(samples, map(int, header["documents"]), strict=True)))
    except (ValueError, KeyError, TypeError) as error:
        raise damaged(path, 1) from error
    for number, raw in parsed_lines(path, lines):
        try:
            points.add_line(raw, samples)
        except (ValueError, KeyError, TypeError, OverflowError) as error:
            raise damaged(path, number) from error
    return lines
