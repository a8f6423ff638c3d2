"""Records of bins: what removing each part of the experts or neurons cost, kept as a file."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np

from analysis.errors import StatsError
from analysis.lazy import pd
from analysis.model import MoEModel
from pruning.evaluate.bins import BIN_COLUMNS, Bin, Binning, rank_agreement
from pruning.evaluate.store import Count, Record, RecordStore, RunFacts, SampleFacts
from pruning.plan import model_ref

BINS_TABLE_COLUMNS = (
    *("record", "granularity", "criterion", "gate", "calibrated_on", "corpus", "order", "scope"),
    *("bins", "removed", "agreement", "first", "last", "full_loss", "num_samples", "num_tokens"),
    *("dtype", "created_at"),
)


@dataclass(frozen=True, slots=True)
class RankedBy:
    """What ordered the experts or neurons."""

    # criterion, gate: of the saliency.
    criterion: str
    gate: str
    # corpora, runs: of the statistics, with weights; empty where none were read.
    corpora: tuple[str, ...]
    runs: tuple[str, ...]
    granularity: str  # `expert` or `atomic`
    how: Binning  # see `Binning`


@dataclass(frozen=True, slots=True)
class BinRow:
    """A bin of a record: BIN_COLUMNS; None for what is undefined."""

    bin: int
    removed: int
    saliency: float | None
    share: float | None
    loss_change: float
    low: float | None
    high: float | None
    pooled: float | None


class BinsRecord(Record):
    """The loss without each bin, on one set of samples.

    The digest is of model, order, what each bin removes, samples and settings.
    """

    folder = "bins"
    word = "record of bins"
    command = "bins"
    measured = "rows"

    ranked: RankedBy  # what ordered the experts or neurons
    corpus: SampleFacts  # of the samples: `name`, `digest`, and which documents were drawn
    # Of each bin. Empty: not measured yet.
    rows: tuple[BinRow, ...] = ()
    # Of the unpruned model on the same samples, nats per token, mean over samples.
    full_loss: float = 0.0
    # num_samples, num_tokens: samples, and positions scored in all of them.
    num_samples: Count = 0
    num_tokens: Count = 0
    settings: RunFacts  # `dtype`, `seed` (of the bootstrap)

    @classmethod
    def new(
        cls,
        model: MoEModel,
        ranked: RankedBy,
        bins: Sequence[Bin],
        corpus: Mapping[str, Any],
        settings: Mapping[str, Any],
    ) -> Self:
        """A record without results yet; the digest of `corpus` is of tokens and what is predicted.

        `settings` is what else changes the numbers.
        """
        order = asdict(ranked)
        del order["runs"]  # repeated with more groups: other ids, equal numbers
        deciding = {
            "model": model.identity,
            "ranked": order,
            "plans": [each.plan.digest for each in bins],
            "corpus": corpus["digest"],
            "settings": dict(settings),
        }
        names = (model.name, ranked.criterion, ranked.granularity, str(corpus["name"]))
        words = [Path(name).stem for name in names]
        ref = model_ref(model)
        return cls.begun(
            words, deciding, model=ref, ranked=ranked, corpus=corpus, settings=settings
        )

    @property
    def table(self) -> pd.DataFrame:
        """Table of BIN_COLUMNS, see `bin_table`."""
        table = pd.DataFrame(list(self.rows), columns=list(BIN_COLUMNS))
        return table.astype(dict.fromkeys(BIN_COLUMNS[2:], "float64"))

    def with_results(
        self, table: pd.DataFrame, measured: tuple[float, int, int], made: Mapping[str, Any]
    ) -> Self:
        """The record with `full_loss`, `num_samples`, `num_tokens` and a table of BIN_COLUMNS."""
        if not np.isfinite(table["loss_change"]).all():
            raise StatsError(
                "The loss without a bin is no finite number; the model gives infinite or undefined "
                "logits, perhaps for lack of range: try --dtype bfloat16 or float32."
            )
        plain = table[list(BIN_COLUMNS)].astype(object).where(np.isfinite(table), None)
        rows = tuple(BinRow(*values) for values in plain.itertuples(index=False, name=None))
        full_loss, num_samples, num_tokens = measured
        return self.finished(
            made, rows=rows, full_loss=full_loss, num_samples=num_samples, num_tokens=num_tokens
        )


class BinsStore(RecordStore[BinsRecord]):
    """Records of bins of one or more statistics directories; new ones go to the first."""

    kind = BinsRecord


def bins_overview(records: Iterable[BinsRecord]) -> pd.DataFrame:
    """Table of BINS_TABLE_COLUMNS, one row a record.

    `removed` is what all bins remove together, `agreement` Spearman's correlation of saliency and
    loss change over them, `first` and `last` the loss change without the least and the most
    salient bin (by place: the first and the last), in nats per token.
    """
    rows = []
    for record in records:
        ranked, table = record.ranked, record.table
        changes = table["loss_change"]
        row = {
            **{"record": record.record_id, **asdict(ranked), **asdict(ranked.how)},
            **{"calibrated_on": "+".join(ranked.corpora), "corpus": record.corpus["name"]},
            **{"bins": len(table), "removed": int(table["removed"].sum())},
            **{"agreement": rank_agreement(table), "first": changes.iloc[0]},
            **{"last": changes.iloc[-1], "full_loss": record.full_loss},
            **{"num_samples": record.num_samples, "num_tokens": record.num_tokens},
            **{"dtype": record.settings["dtype"], "created_at": record.created_at},
        }
        rows.append(row)
    return pd.DataFrame(rows, columns=list(BINS_TABLE_COLUMNS))
