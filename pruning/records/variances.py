"""Records of the variance of hidden states, and their tables."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Self

from pydantic import model_validator

from analysis.errors import StatsError
from analysis.lazy import pd
from pruning.measures.result import check_possible
from pruning.measures.store import Count, RecordStore
from pruning.records.plan_facts import PlanRecord

VARIANCE_COLUMNS = ("layer", "model", "variance", "num_tokens")
VARIANCE_TABLE_COLUMNS = (
    "record",
    "plan",
    "criterion",
    "calibrated_on",
    "repaired_on",
    "repair_tokens",
    "schedule",
    "granularity",
    "sparsity",
    "removed",
    "bytes",
    "corpus",
    "draw",
    "layer",
    "variance",
    "full",
    "num_tokens",
    "dtype",
    "created_at",
)


class VarianceRecord(PlanRecord):
    """The variance of hidden states after each decoder layer, under one plan.

    Its settings are `dtype`, `seed` and `tokens` (the most that are drawn).
    """

    folder = "variances"
    word = "record of hidden states"
    command = "variance"
    measured = "variances"

    variances: tuple[float, ...] = ()  # after each decoder layer, including dense ones
    num_tokens: Count = 0  # whose mean it is

    @model_validator(mode="after")
    def _can_be(self) -> Self:
        check_possible("variance", *self.variances)
        return self

    @property
    def draw(self) -> str:
        """Identifies tokens and settings: only equal ones are comparable."""
        return f"{self.corpus['digest']} {self.settings}"

    def with_results(
        self, variances: Sequence[float], num_tokens: int, run_facts: Mapping[str, Any]
    ) -> Self:
        """The record with results."""
        if not all(map(math.isfinite, variances)):
            raise StatsError(
                f"A variance of {self.record_id} is no finite number; the model's hidden states "
                "overflow, perhaps for lack of range: try --dtype bfloat16 or float32."
            )
        return self.finished(
            run_facts, variances=tuple(map(float, variances)), num_tokens=num_tokens
        )


class VarianceStore(RecordStore[VarianceRecord]):
    """Records of hidden states of one or more statistics directories; new ones go to the first."""

    kind = VarianceRecord


def variance_table(records: Mapping[str, VarianceRecord]) -> pd.DataFrame:
    """Table of VARIANCE_COLUMNS, one row per decoder layer of each record."""
    rows = [
        (layer, name, value, record.num_tokens)
        for name, record in records.items()
        for layer, value in enumerate(record.variances)
    ]
    return pd.DataFrame(rows, columns=list(VARIANCE_COLUMNS))


def variance_overview(records: Iterable[VarianceRecord]) -> pd.DataFrame:
    """Table of VARIANCE_TABLE_COLUMNS, one row per decoder layer of a record.

    The plan's columns are those of evaluations; for `draw` see `VarianceRecord.draw`; `full` is the
    original model's variance on the same tokens, missing if not measured.
    """
    measured_records = [record for record in records if record.is_measured]
    full_variances = {
        record.draw: record.variances for record in measured_records if not record.plan.removed
    }
    rows = [
        {
            "record": record.record_id,
            "plan": record.plan_digest,
            **record.plan.columns,
            "corpus": record.corpus["name"],
            "draw": record.draw,
            "layer": layer,
            "variance": value,
            "full": dict(enumerate(full_variances.get(record.draw, ()))).get(layer),
            "num_tokens": record.num_tokens,
            "dtype": record.settings["dtype"],
            "created_at": record.created_at,
        }
        for record in measured_records
        for layer, value in enumerate(record.variances)
    ]
    table = pd.DataFrame(rows, columns=list(VARIANCE_TABLE_COLUMNS))
    return table.astype(dict.fromkeys(("removed", "variance", "full"), "float64"))
