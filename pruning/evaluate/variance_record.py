"""Records of hidden states: their variance after each layer under one plan, kept as a file."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Self

from analysis.errors import StatsError
from analysis.lazy import pd
from pruning.evaluate.record import PlanRecord
from pruning.evaluate.store import Count, RecordStore

VARIANCE_COLUMNS = ("layer", "model", "variance", "num_tokens")
VARIANCE_TABLE_COLUMNS = (
    *("record", "plan", "criterion", "calibrated_on", "schedule", "granularity", "sparsity"),
    *("removed", "bytes", "corpus", "draw", "layer", "variance", "full"),
    *("num_tokens", "dtype", "created_at"),
)


class VarianceRecord(PlanRecord):
    """The variance of hidden states after each decoder layer, under one plan.

    Its settings are `dtype`, `seed` and `tokens` (the most that are drawn).
    """

    folder = "variances"
    word = "record of hidden states"
    command = "variance"
    measured = "variances"

    # After each decoder layer, dense ones too, the first one first; empty: not measured yet.
    variances: tuple[float, ...] = ()
    num_tokens: Count = 0  # that the variance is the mean of

    @property
    def draw(self) -> str:
        """Names the tokens and how they were computed: only equal ones may be compared."""
        return f"{self.corpus['digest']} {self.settings}"

    def with_results(
        self, variances: Sequence[float], num_tokens: int, made: Mapping[str, Any]
    ) -> Self:
        """The record with what was measured."""
        if not all(map(math.isfinite, variances)):
            raise StatsError(
                f"A variance of {self.record_id} is no finite number; the model's hidden states "
                "overflow, perhaps for lack of range: try --dtype bfloat16 or float32."
            )
        return self.finished(made, variances=tuple(map(float, variances)), num_tokens=num_tokens)


class VarianceStore(RecordStore[VarianceRecord]):
    """Records of hidden states of one or more statistics directories; new ones go to the first."""

    kind = VarianceRecord


def variance_table(found: Mapping[str, VarianceRecord]) -> pd.DataFrame:
    """Table of VARIANCE_COLUMNS: one row for each decoder layer of each record, by its name."""
    rows = [
        (layer, name, value, record.num_tokens)
        for name, record in found.items()
        for layer, value in enumerate(record.variances)
    ]
    return pd.DataFrame(rows, columns=list(VARIANCE_COLUMNS))


def variance_overview(records: Iterable[VarianceRecord]) -> pd.DataFrame:
    """Table of VARIANCE_TABLE_COLUMNS, one row a decoder layer of a record.

    The plan's columns are those of an evaluation; `draw` tells apart the tokens of one corpus;
    `full` is the unpruned model's variance on the same tokens, missing where it was not measured.
    """
    known = [record for record in records if record.is_measured]
    whole = {record.draw: record.variances for record in known if not record.plan.removed}
    rows = [
        {
            **{"record": record.record_id, "plan": record.plan_digest, **record.plan.columns},
            **{"corpus": record.corpus["name"], "draw": record.draw, "layer": layer},
            "variance": value,
            "full": dict(enumerate(whole.get(record.draw, ()))).get(layer),
            **{"num_tokens": record.num_tokens, "dtype": record.settings["dtype"]},
            "created_at": record.created_at,
        }
        for record in known
        for layer, value in enumerate(record.variances)
    ]
    table = pd.DataFrame(rows, columns=list(VARIANCE_TABLE_COLUMNS))
    return table.astype(dict.fromkeys(("removed", "variance", "full"), "float64"))
