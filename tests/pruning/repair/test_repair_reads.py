"""What a repair reads: each weight once, and nothing of what it writes."""

import pytest
import torch
from exports import keeping
from reads import bytes_read, counts_reads

from analysis.calibration.loading import CalibrationSettings
from analysis.drain import drain
from analysis.files.content import file_sha256
from analysis.model.moe_model import OUTPUT_HEAD
from analysis.model.opening import load_model_index
from builders import tiny_model
from builders.repairs import token_sequences
from pruning.plan.plan import fit_plan
from pruning.records.repair import RepairStore
from pruning.repair.run import repair_plan

# Most weights are of experts, and far more than headers.
WIDE = {"hidden_size": 64, "intermediate_size": 160, "num_experts": 32}


@counts_reads
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_every_weight_is_read_once(tmp_path, dtype):
    stored = tiny_model("olmoe", **WIDE).to(getattr(torch, dtype))
    stored.save_pretrained(tmp_path / "source")
    model = load_model_index(str(tmp_path / "source"))
    plan = fit_plan(keeping(model, tuple(range(16))), model)
    settings = CalibrationSettings(16, dtype="float32", batch_size=4)

    def run(name):
        store = RepairStore([tmp_path / name])
        before = bytes_read()
        record = drain(repair_plan(model, plan, [token_sequences(200)], settings, store))
        return bytes_read() - before, record, store.path(record).with_suffix("")

    run("before")  # also reads libraries
    count, record, folder = run("stats")
    assert record.files == {path.name: file_sha256(path) for path in folder.iterdir()}
    assert len(record.files) == len(model.layers)
    needed = model.checkpoint.nbytes - model.checkpoint.tensors[OUTPUT_HEAD].nbytes
    assert needed <= count <= 1.05 * needed
