"""Run by test_repair_faults.py: repairs by two processes, of three batches and of one."""

import sys
from pathlib import Path

import torch

from analysis.calibration.loading import CalibrationSettings, Placement
from analysis.drain import drain
from analysis.model.opening import load_model_index
from builders.repairs import plan_for, token_sequences
from pruning.records.repair import RepairStore
from pruning.repair.run import repair_plan

torch.set_num_threads(1)


def repair(path, stats, batch_size):
    model = load_model_index(path)
    placement = Placement(stream_layers=True)
    settings = CalibrationSettings(24, batch_size=batch_size, device="cpu", placement=placement)
    corpora, store = [token_sequences(12, 24)], RepairStore([stats])
    return repair_plan(model, plan_for(model), corpora, settings, store)


for size in (4, 12):
    drain(repair(sys.argv[1], Path(sys.argv[2]) / str(size), size))
