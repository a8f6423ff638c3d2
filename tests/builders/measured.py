"""Evaluations with losses by hand, as if they had been read from the table."""

from dataclasses import replace

import numpy as np

from pruning.measurements.block import ORIGINAL
from pruning.measurements.table import PlanSums
from pruning.measures.result import SampleSums
from pruning.records.evaluation import EvaluationRecord


def sums(values, tokens=None, documents=None):
    """Losses of samples, summed; each of one token if nothing else is said."""
    counts = np.ones(len(values), np.int64) if tokens is None else np.array(tokens)
    return SampleSums(np.array(values, np.float64), counts, documents)


def with_losses(record, own, full, **fields):
    """A stored record with these fields, and the losses of the plan and of the original model."""
    bare = EvaluationRecord.from_json(record.to_line(), "a line")
    fields = {"measures": ("nll",), "right_answers": None, **fields}
    new = bare.model_copy(update=fields)
    ids = tuple(f"{number:016x}" for number in range(len(own.counts)))
    plans = {new.plan_digest: own, ORIGINAL: full}
    return new.with_numbers(
        {plan: PlanSums((16,) * 6, ids, {"nll": sums}) for plan, sums in plans.items()}
    )


def altered(record, own=None, full=None, **fields):
    """A record with other fields and the numbers that it has, or with other losses."""
    new = type(record).from_json(record.to_line(), "a line").model_copy(update=fields)
    plans = {
        new.plan_digest: record.numbers[record.plan_digest],
        ORIGINAL: record.numbers[ORIGINAL],
    }
    for plan, losses in ((new.plan_digest, own), (ORIGINAL, full)):
        if losses is not None:
            ids = tuple(f"{number:016x}" for number in range(len(losses.counts)))
            both = {**plans[plan].sums, "nll": losses}
            plans[plan] = replace(plans[plan], samples=ids, sums=both)
    return new.with_numbers(plans)
