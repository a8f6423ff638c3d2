"""Evaluations of plans by parts of the calibration tokens: how quality grows with their number.

As AIMER's Figure 1 (arXiv:2603.18492) and HEAPr's Figure 4 (arXiv:2509.22299) have it: neighbouring
eighths, quarters and halves of a run each rank a plan, and spread around their mean.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from analysis.lazy import pd
from pruning.measurements.records import MeasuredStore
from pruning.measures.store import Count
from pruning.plan.plan import PruningPlan
from pruning.records.evaluation import EvaluationRecord
from pruning.records.plan_facts import MADE_BY

SUBSET_COLUMNS = ("corpus", "criterion", "calibrated_on", "repaired_on", "tokens", "increase")


class SubsetRecord(EvaluationRecord):
    """An evaluation of a plan ranked by, or repaired on, some of the tokens."""

    folder = "subsets"
    word = "evaluation of a part of the tokens"
    command = "subsets"
    made_by = (*MADE_BY, "runs", "repair")

    tokens: Count  # that ranked the plan; if it is repaired, that the repair was fitted on

    @classmethod
    def facts_of(cls, plan: PruningPlan) -> dict[str, Any]:
        """How many tokens ranked it, or repaired it."""
        return {"tokens": plan.repair.tokens if plan.repair else plan.provenance.tokens}


class SubsetStore(MeasuredStore[SubsetRecord]):
    """Such evaluations in one or more statistics folders; new ones go to the first."""

    kind = SubsetRecord


def subset_table(records: Iterable[SubsetRecord]) -> pd.DataFrame:
    """Table of SUBSET_COLUMNS, a row per record; `increase` is the loss added, nats per token."""
    rows = [
        (
            record.corpus["name"],
            record.plan.criterion,
            "+".join(record.plan.corpora),
            "+".join(record.plan.repaired_on),
            record.tokens,
            record.mean("nll") - record.full_mean("nll"),
        )
        for record in records
        if "nll" in record.metrics
    ]
    return pd.DataFrame(rows, columns=list(SUBSET_COLUMNS)).sort_values(
        ["corpus", "criterion", "calibrated_on", "repaired_on", "tokens"], ignore_index=True
    )
