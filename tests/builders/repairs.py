"""Repairs of tiny models, fitted on random token ids."""

from dataclasses import replace
from pathlib import Path

import numpy as np

from analysis.calibration.loading import CalibrationSettings
from analysis.corpora.sequences import TokenSequences
from analysis.drain import drain
from analysis.model.moe_model import MoEModel
from pruning.plan.plan import PruningPlan, fit_plan, model_ref
from pruning.records.repair import RepairRecord, RepairStore
from pruning.records.repair_files import with_repair_files
from pruning.repair.run import repair_plan

VOCAB = 51  # of the smallest tiny models


# Of the tiny Qwen3-MoE, whose layer 1 is dense.
KEPT = {0: (1, 2, 3, 5), 2: (0, 2, 3, 4), 3: (1, 2, 3)}


def plan_for(model: MoEModel) -> PruningPlan:
    """The plan that keeps those."""
    return fit_plan(PruningPlan(model_ref(model), KEPT), model)


def token_sequences(rows: int = 30, length: int = 16, seed: int = 0) -> TokenSequences:
    """Random ids that every tiny model knows."""
    ids = np.random.default_rng(seed).integers(3, VOCAB, (rows, length)).astype(np.int32)
    return TokenSequences("random.jsonl", tuple(ids), rows, 0)


def repaired(
    model: MoEModel,
    plan: PruningPlan,
    stats: Path,
    sequences: TokenSequences | None = None,
    dtype: str = "float32",
) -> tuple[PruningPlan, RepairRecord]:
    """The complete plan with its repair, and the record of the repair."""
    plan, sequences = fit_plan(plan, model), sequences or token_sequences()
    settings = CalibrationSettings(sequences.longest, dtype=dtype, batch_size=4)
    record = drain(repair_plan(model, plan, [sequences], settings, RepairStore([stats])))
    return with_repair_files(replace(plan, repair=record.reference), [stats]), record
