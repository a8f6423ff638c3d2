"""Run by test_repair_faults.py: repairs by two processes, of three batches and of one."""

import sys
from pathlib import Path

import torch

from analysis.calibration.loading import CalibrationSettings, Placement
from analysis.drain import drain
from analysis.model.opening import load_model_index
from builders.repairs import token_sequences
from pruning.plan.plan import PruningPlan, fit_plan, model_ref
from pruning.records.repair import RepairStore
from pruning.repair.run import repair_plan

torch.set_num_threads(1)
KEPT = {0: (1, 2, 3, 5), 2: (0, 2, 3, 4), 3: (1, 2, 3)}  # as in test_repair_faults.py


def repair(path, stats, batch_size):
    model = load_model_index(path)
    plan = fit_plan(PruningPlan(model_ref(model), KEPT), model)
    placement = Placement(stream_layers=True)
    settings = CalibrationSettings(24, batch_size=batch_size, device="cpu", placement=placement)
    return repair_plan(model, plan, [token_sequences(12, 24)], settings, RepairStore([stats]))


for size in (4, 12):
    drain(repair(sys.argv[1], Path(sys.argv[2]) / str(size), size))
