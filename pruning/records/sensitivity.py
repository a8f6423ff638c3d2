"""Records of sensitivity: the points of an order on a corpus; their numbers lie in the table."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self

from filelock import FileLock
from pydantic import model_validator

from analysis.corpora.account import COUNTS
from analysis.files.durable import PARTIAL, make_folder
from analysis.model.moe_model import ModelRef, MoEModel
from pruning.measurements.block import Block
from pruning.measurements.records import TableStore
from pruning.measures.points import MEASURES, WHOLE, Point, Points
from pruning.measures.store import Count, OfRecords, Record
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


class ListedPoint(NamedTuple):
    """A measured point, as a record lists it."""

    base: str  # removed from each layer, joined by dots; empty if nothing is
    layer: int  # decoder index of the layer that differs from the base; -1 if none
    removed: int  # what that layer loses; the sum of the base if none
    num_samples: Count  # samples of the record that it was measured on
    plan: str  # digest


class SensitivityRecord(Record):
    """The points of an order that were measured on a corpus."""

    folder = "sensitivity"
    word = "sensitivity"
    command = "sensitivity"
    measured = "points"

    order: Mapping[str, Any]  # see `OrderRef`
    corpus: Mapping[str, Any]  # name, and how samples were drawn
    layers: tuple[tuple[Count, Count], ...]  # decoder index and size of each layer with experts
    # Id of each sample, see `sample_ids`, and its document, see `TokenSequences.documents`.
    samples: tuple[tuple[str, Count | None], ...] = ()
    points: tuple[ListedPoint, ...] = ()

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
        corpus = {"name": drawn_samples.sequences.corpus, **drawn_samples.facts}
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

    @model_validator(mode="after")
    def _can_be(self) -> Self:
        sizes = [size for _, size in self.layers]
        for point in self.plans:
            for level, size in zip(point.removed, sizes, strict=True):
                if not 0 <= level <= size:
                    raise ValueError(f"a point removes {level} of {size} in a layer")
        return self

    @property
    def plans(self) -> dict[Point, str]:
        """The digest of each point's plan."""
        layers = [layer for layer, _ in self.layers]
        places = {layer: place for place, layer in enumerate(layers)} | {WHOLE: WHOLE}
        plans = {}
        for point in self.points:
            base = tuple(map(int, point.base.split("."))) if point.base else (0,) * len(layers)
            if len(base) != len(layers) or point.layer not in places:
                raise ValueError("a point is of other layers than the model's")
            plans[Point(base, places[point.layer], point.removed)] = point.plan
        return plans

    def listed(self, point: Point, num_samples: int, plan: str) -> ListedPoint:
        """A point as the record lists it."""
        base = ".".join(map(str, point.base)) if any(point.base) else ""
        layer = WHOLE if point.position == WHOLE else self.layers[point.position][0]
        return ListedPoint(base, layer, point.level, num_samples, plan)


def _by_order(records: Sequence[SensitivityRecord]) -> dict[str, list[SensitivityRecord]]:
    """Digest of an order -> its records, newest first."""
    by_order = defaultdict[str, list[SensitivityRecord]](list)
    for record in sorted(records, key=lambda r: (r.created_at, r.record_id), reverse=True):
        by_order[record.order["digest"]].append(record)
    return dict(by_order)


_BY_ORDER: Final = OfRecords(_by_order)


class SensitivityStore(TableStore[SensitivityRecord]):
    """Sensitivity records of one or more statistics directories; new ones go to the first."""

    kind = SensitivityRecord

    def of_order(self, identity: str, digest: str) -> list[SensitivityRecord]:
        """The records of an order, newest first."""
        self.table.refresh()  # what is kept of an unchanged file has its numbers there
        return _BY_ORDER(self, identity).get(digest, [])

    def points(self, record: SensitivityRecord) -> Points:
        """The points of a record, with the values that are known on its samples."""
        points, samples = Points(dict(record.layers)), dict(record.samples)
        points.add_documents(samples)
        for point, plan in record.plans.items():
            self.add_known(points, record, {point: plan}, samples)
        return points

    def add_known(
        self,
        points: Points,
        record: SensitivityRecord,
        plans: Mapping[Point, str],
        samples: Iterable[str],
    ) -> None:
        """Add what the table knows of these points, by the digests of their plans, on samples."""
        model, dtype, wanted = record.model.identity, record.settings["dtype"], set(samples)

        def reads(block: Block) -> bool:
            return not wanted.isdisjoint(block.samples)

        for point, plan in plans.items():
            known = self.table.by_sample(model, plan, dtype, MEASURES, reads)
            if found := [sample for sample in samples if sample in known]:
                pairs = (known[sample] for sample in found)
                points.add(point, found, [[sum_ / n for sum_ in sums] for sums, n in pairs])

    def finish(
        self,
        record: SensitivityRecord,
        samples: Mapping[str, int | None],
        plans: Mapping[Point, str],
        run_facts: Mapping[str, Any],
        *,
        ran: bool,
    ) -> SensitivityRecord:
        """The record that these points were measured too, as far as they were.

        `samples` (id -> document) are those that they were measured on, `plans` their digests. It
        is written if it says more than before, or if anything `ran`, which may have replaced
        numbers that were lost.
        """
        make_folder(self.folder)
        path = self.folder / f".{record.record_id}{PARTIAL}.lock"
        with FileLock(path):
            self.table.refresh()  # another process may have written since
            stored = self.find(record)
            documents = dict(stored.samples)
            for sample, document in samples.items():
                if documents.get(sample) is None:
                    documents[sample] = document
            points = dict[str, Point]()
            for point, plan in {**stored.plans, **plans}.items():
                points.setdefault(plan, point)
            known = {plan: self._measured_on(record, plan) & documents.keys() for plan in points}
            measured = set[str]().union(*known.values())
            done = stored.finished(
                run_facts,
                samples=tuple(entry for entry in documents.items() if entry[0] in measured),
                points=tuple(
                    stored.listed(point, len(known[plan]), plan)
                    for plan, point in points.items()
                    if known[plan]
                ),
            )
            is_new = ran or (done.samples, done.points) != (stored.samples, stored.points)
            if done.is_measured and is_new:
                self.save(done)
            path.unlink(missing_ok=True)
        return done if done.is_measured and is_new else stored

    def _measured_on(self, record: SensitivityRecord, plan: str) -> set[str]:
        """Samples, of any set, on which a plan was measured."""
        blocks = self.table.blocks(record.model.identity, plan, record.settings["dtype"])
        whole = (block for block in blocks if all(name in block.sums for name in MEASURES))
        return {sample for block in whole for sample in block.samples}

    def is_whole(self, record: SensitivityRecord) -> bool:
        """Whether the table has the numbers of all points that a record lists."""
        return not self._lacking(record)

    def _lacking(self, record: SensitivityRecord) -> str:
        samples = {sample for sample, _ in record.samples}
        for point in record.points:
            if len(self._measured_on(record, point.plan) & samples) < point.num_samples:
                return point.plan
        return ""
