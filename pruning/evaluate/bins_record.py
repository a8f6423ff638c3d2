"""Records of bins: what removing each part of the experts or neurons cost, kept as a file."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import pandas as pd

from analysis.errors import StatsError
from analysis.model import ModelRef, MoEModel
from analysis.stats.store import digest_of, now, run_name
from pruning.evaluate.bins import BIN_COLUMNS, Bin, Binning, rank_agreement
from pruning.evaluate.store import RecordKind, RecordStore, file_json
from pruning.plan import model_ref

SCHEMA_VERSION = 1
BINS_TABLE_COLUMNS = (
    *("record", "granularity", "criterion", "gate", "calibrated_on", "corpus", "order", "scope"),
    *("bins", "removed", "agreement", "first", "last", "full_loss", "num_samples", "num_tokens"),
    *("dtype", "created_at"),
)


@dataclass(frozen=True, slots=True)
class RankedBy:
    """What ordered the experts or neurons.

    Args:
        criterion, gate: of the saliency.
        corpora, runs: of the statistics, with weights; empty where none were read.
        granularity: `expert` or `atomic`.
        how: see `Binning`.
    """

    criterion: str
    gate: str
    corpora: tuple[str, ...]
    runs: tuple[str, ...]
    granularity: str
    how: Binning


@dataclass(frozen=True)
class BinsRecord:
    """The loss without each bin, on one set of samples.

    Args:
        record_id: readable name and 8 hex digits of the digest; the file's name.
        digest: of model, order, what each bin removes, samples and settings.
        model: that was measured.
        ranked: what ordered the experts or neurons.
        corpus: of the samples: `name`, `digest`, and which documents were drawn.
        rows: BIN_COLUMNS of each bin; None for what is undefined. Empty: not measured yet.
        full_loss: of the unpruned model on the same samples, nats per token, mean over samples.
        num_samples, num_tokens: samples, and positions scored in all of them.
        settings: `dtype`, `seed` (of the bootstrap).
        made: `created_at`, `device`, `seconds`; changes no number.
    """

    record_id: str
    digest: str
    model: ModelRef
    ranked: RankedBy
    corpus: Mapping[str, Any]
    rows: Sequence[Mapping[str, Any]]
    full_loss: float
    num_samples: int
    num_tokens: int
    settings: Mapping[str, Any]
    made: Mapping[str, Any]

    def to_json(self) -> str:
        """The content of the file."""
        return file_json(SCHEMA_VERSION, asdict(self))

    @property
    def is_measured(self) -> bool:
        """Whether it has results."""
        return bool(self.rows)

    @property
    def table(self) -> pd.DataFrame:
        """Table of BIN_COLUMNS, see `bin_table`."""
        table = pd.DataFrame(list(self.rows), columns=list(BIN_COLUMNS))
        return table.astype(dict.fromkeys(BIN_COLUMNS[2:], "float64"))

    def with_results(
        self, table: pd.DataFrame, measured: tuple[float, int, int], made: Mapping[str, Any]
    ) -> "BinsRecord":
        """The record with what was measured.

        Args:
            table: of BIN_COLUMNS.
            measured: `full_loss`, `num_samples`, `num_tokens`.
            made: `device`, `seconds`.

        Raises:
            StatsError: a change of the loss is no finite number.
        """
        if not np.isfinite(table["loss_change"]).all():
            raise StatsError(
                "The loss without a bin is no finite number; the model gives infinite or undefined "
                "logits, perhaps for lack of range: try --dtype bfloat16 or float32."
            )
        rows = tuple(
            {str(name): _plain(value) for name, value in row.items()}
            for row in table[list(BIN_COLUMNS)].to_dict("records")
        )
        full_loss, num_samples, num_tokens = measured
        return replace(
            self,
            rows=rows,
            full_loss=full_loss,
            num_samples=num_samples,
            num_tokens=num_tokens,
            made={"created_at": now(), **made},
        )


def _plain(value: float | int) -> float | int | None:
    return value if math.isfinite(value) else None


def new_bins_record(
    model: MoEModel,
    ranked: RankedBy,
    bins: Sequence[Bin],
    corpus: Mapping[str, Any],
    settings: Mapping[str, Any],
) -> BinsRecord:
    """A record without results yet.

    Args:
        model: to be measured.
        ranked: what ordered the experts or neurons.
        bins: what each removes.
        corpus: `name`, `digest` (of tokens and of what is predicted), and what else is known.
        settings: what else changes the numbers.
    """
    order = asdict(ranked)
    del order["runs"]  # made again with more groups they have other ids and the same numbers
    digest = digest_of(
        {
            "schema_version": SCHEMA_VERSION,
            "model": model.identity,
            "ranked": order,
            "plans": [each.plan.digest for each in bins],
            "corpus": corpus["digest"],
            "settings": dict(settings),
        }
    )
    words = (model.name, ranked.criterion, ranked.granularity, str(corpus["name"]))
    return BinsRecord(
        record_id=run_name(*(Path(word).stem for word in words), digest=digest),
        digest=digest,
        model=model_ref(model),
        ranked=ranked,
        corpus=dict(corpus),
        rows=(),
        full_loss=0.0,
        num_samples=0,
        num_tokens=0,
        settings=dict(settings),
        made={},
    )


def _parsed(raw: Mapping[str, Any]) -> BinsRecord:
    ranked = raw["ranked"]
    if not raw["rows"] or any(set(row) != set(BIN_COLUMNS) for row in raw["rows"]):
        raise ValueError(f"it needs rows of {', '.join(BIN_COLUMNS)}")
    record = BinsRecord(
        **{**raw}
        | {
            "model": ModelRef(**raw["model"]),
            "ranked": RankedBy(
                **ranked
                | {
                    "corpora": tuple(ranked["corpora"]),
                    "runs": tuple(ranked["runs"]),
                    "how": Binning(**ranked["how"]),
                }
            ),
        }
    )
    _check(record)
    return record


def _check(record: BinsRecord) -> None:
    """A ValueError for a record whose values are not of the kinds that its table is made of."""
    ranked, table = record.ranked, record.table
    words = [record.record_id, record.digest, record.model.name, record.model.identity]
    words += [ranked.criterion, ranked.gate, ranked.granularity, *ranked.corpora, *ranked.runs]
    words += [ranked.how.order, ranked.how.scope, record.corpus["name"], record.settings["dtype"]]
    if strange := [word for word in words if not isinstance(word, str)]:
        raise ValueError(f"{strange[0]!r} is no text")
    numbers = [*table["loss_change"], *table["removed"], record.full_loss]
    if not np.isfinite(numbers).all():
        raise ValueError("a change of the loss is no finite number")
    dict(record.made)


BINS: Final = RecordKind("bins", "record of bins", "bins", SCHEMA_VERSION, parse=_parsed)


class BinsStore(RecordStore[BinsRecord]):
    """Records of bins of one or more statistics directories; new ones go to the first."""

    def __init__(self, directories: Sequence[Path]) -> None:
        super().__init__(BINS, directories)


def bins_overview(records: Iterable[BinsRecord]) -> pd.DataFrame:
    """Table of BINS_TABLE_COLUMNS, one row a record.

    `removed` is what all bins remove together, `agreement` Spearman's correlation of saliency and
    loss change over them, `first` and `last` the loss change without the least and the most
    salient bin (by place: the first and the last), in nats per token.
    """
    rows = []
    for record in records:
        ranked, table = record.ranked, record.table
        how, changes = ranked.how, table["loss_change"]
        rows.append(
            (
                *(record.record_id, ranked.granularity, ranked.criterion, ranked.gate),
                *("+".join(ranked.corpora), record.corpus["name"], how.order, how.scope),
                *(len(table), int(table["removed"].sum()), rank_agreement(table)),
                *(changes.iloc[0], changes.iloc[-1], record.full_loss),
                *(record.num_samples, record.num_tokens, record.settings["dtype"]),
                record.made.get("created_at", ""),
            )
        )
    return pd.DataFrame(rows, columns=list(BINS_TABLE_COLUMNS))
