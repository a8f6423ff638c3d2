"""Runs of repairs: the same bytes every time, resumed by layer, refused in one line."""

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from filelock import FileLock
from launching import TESTS, torchrun
from safetensors.torch import load_file

from analysis.calibration.loading import CalibrationSettings, Placement
from analysis.drain import drain
from analysis.errors import CheckpointError, PlanError, StatsError
from analysis.model import load_model_index
from builders import resealed
from builders.repairs import repaired, token_sequences
from families.configs import BY_NAME, tiny_model
from pruning.evaluate.record import EvaluationRecord
from pruning.masking import masked
from pruning.plan import PruningPlan, fit_plan, keep_all, model_ref, plan_from_dict
from pruning.repair.record import RepairStore
from pruning.repair.run import repair_plan


@pytest.fixture
def model(tmp_path):
    """A Qwen3-MoE with a dense layer between sparse ones."""
    tiny_model(BY_NAME["qwen3_moe"]).save_pretrained(tmp_path / "model")
    return load_model_index(str(tmp_path / "model"))


def plan_of(model):
    return fit_plan(
        PruningPlan(model_ref(model), {each.index: (1, 2, 3) for each in model.layers}), model
    )


def steps_of(model, stats, plan=None, sequences=None, **options):
    settings = CalibrationSettings(16, dtype="float32", batch_size=4, **options)
    sequences = sequences or token_sequences()
    return repair_plan(model, plan or plan_of(model), [sequences], settings, RepairStore([stats]))


def files_of(stats):
    return {path.name: path.read_bytes() for path in stats.glob("repairs/*/*")}


def test_two_runs_give_the_same_bytes_wherever_hidden_states_are(model, tmp_path):
    first = drain(steps_of(model, tmp_path / "a"))
    drain(steps_of(model, tmp_path / "b"))
    place = Placement(hidden_states_dir=tmp_path / "states")
    drain(steps_of(model, tmp_path / "c", placement=place))
    files = files_of(tmp_path / "a")
    assert set(files) == set(first.files)
    assert files == files_of(tmp_path / "b") == files_of(tmp_path / "c")
    assert not list((tmp_path / "states").iterdir())
    again = list(steps_of(model, tmp_path / "a"))
    assert [step.phase for step in again] == ["cached"]


@pytest.mark.parametrize("layers", [1, 2])
def test_a_stopped_repair_resumes_after_its_last_layer(model, tmp_path, layers):
    drain(steps_of(model, tmp_path / "whole"))
    task = steps_of(model, tmp_path / "parts")
    for _ in task:
        if len(list(tmp_path.glob("parts/repairs/*/*.json"))) == layers:
            break
    task.close()
    assert not RepairStore([tmp_path / "parts"]).records()
    fitted = [step.phase for step in steps_of(model, tmp_path / "parts")]
    assert sum("fitting" in phase for phase in fitted) == len(model.layers) - layers
    assert files_of(tmp_path / "parts") == files_of(tmp_path / "whole")


def test_a_layer_whose_notes_are_damaged_is_fitted_again(model, tmp_path):
    drain(steps_of(model, tmp_path / "whole"))
    task = steps_of(model, tmp_path / "parts")
    for _ in task:
        if notes := list(tmp_path.glob("parts/repairs/*/*.json")):
            break
    task.close()
    notes[0].write_bytes(notes[0].read_bytes()[:10])
    fitted = [step.phase for step in steps_of(model, tmp_path / "parts")]
    assert sum("fitting" in phase for phase in fitted) == len(model.layers)
    assert files_of(tmp_path / "parts") == files_of(tmp_path / "whole")


SCRIPT = """
import os, signal, sys
from pathlib import Path
from test_repair_runs import steps_of
from analysis.model import load_model_index
model, stats = load_model_index(sys.argv[1]), Path(sys.argv[2])
for step in steps_of(model, stats):
    if len(list(stats.glob("repairs/*/*.json"))) == 1:
        os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.slow
def test_a_killed_repair_resumes_with_the_same_bytes(model, tmp_path):
    here = Path(__file__).parent
    paths = os.pathsep.join(map(str, (TESTS.parent, TESTS, here)))
    words = [sys.executable, "-c", SCRIPT, str(model.checkpoint.path), str(tmp_path / "killed")]
    # As many threads as here: others add in another order.
    threads = {"OMP_NUM_THREADS": str(torch.get_num_threads()), "PYTHONPATH": paths}
    ended = subprocess.run(words, env={**os.environ, **threads}, check=False)
    assert ended.returncode == -signal.SIGKILL
    drain(steps_of(model, tmp_path / "killed"))
    drain(steps_of(model, tmp_path / "whole"))
    assert files_of(tmp_path / "killed") == files_of(tmp_path / "whole")


SHARED = """
import sys
from pathlib import Path
from test_repair_runs import steps_of
from analysis.drain import drain
from analysis.model import load_model_index
drain(steps_of(load_model_index(sys.argv[1]), Path(sys.argv[2])))
"""


@pytest.mark.slow
def test_two_processes_share_the_tokens(model, tmp_path):
    script = tmp_path / "shared.py"
    here = str(Path(__file__).parent)
    script.write_text(f"import sys\nsys.path.insert(0, {here!r})\n{SHARED}")
    process = torchrun(script, model.checkpoint.path, tmp_path / "two")
    _, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors
    drain(steps_of(model, tmp_path / "one"))
    (two,), (one,) = (RepairStore([tmp_path / name]).records() for name in ("two", "one"))
    assert [each.damping for each in two.layers] == [each.damping for each in one.layers]
    assert [each.tokens for each in two.layers] == [each.tokens for each in one.layers]
    for name in one.files:
        ours, theirs = (
            load_file(tmp_path / each / "repairs" / one.record_id / name) for each in ("one", "two")
        )
        for key, tensor in ours.items():
            torch.testing.assert_close(theirs[key], tensor, rtol=1e-4, atol=1e-5)


def test_what_cannot_be_repaired_is_refused(model, tmp_path):
    plan, _ = repaired(model, plan_of(model), tmp_path)
    for bad, message in (
        (plan, "is repaired already"),
        (keep_all(model), "removes nothing"),
    ):
        with pytest.raises(StatsError, match=message):
            drain(steps_of(model, tmp_path, bad))
    with pytest.raises(StatsError, match="judges on others"):
        drain(steps_of(model, tmp_path, sequences=token_sequences(1)))
    folder = tmp_path / "other" / "repairs"
    task = steps_of(model, tmp_path / "other")
    next(task)
    (lock,) = folder.glob(".*.lock")
    task.close()
    with FileLock(lock), pytest.raises(StatsError, match="made by another process"):
        drain(steps_of(model, tmp_path / "other"))


def test_a_damaged_repair_is_named(model, tmp_path):
    plan, record = repaired(model, plan_of(model), tmp_path)
    loaded = tiny_model(BY_NAME["qwen3_moe"])
    file = plan.repair.folder / min(record.files)
    file.write_bytes(file.read_bytes()[:100])
    with masked(loaded, model.family, plan), pytest.raises(CheckpointError, match=file.name):
        loaded(torch.arange(3, 9)[None], use_cache=False)
    path = RepairStore([tmp_path]).path(record)
    raw = json.loads(path.read_text())
    raw["layers"][0]["held_out"]["0.1"] = -1
    path.write_text(resealed(raw))
    problems = []
    assert not RepairStore([tmp_path]).records(on_problem=problems.append)
    assert "held_out" in str(problems[0])
    path.unlink()
    with pytest.raises(PlanError, match="not in the statistics folder"):
        plan_from_dict(plan.to_dict()).repair.among([tmp_path])
    for bad in ("x", {}, {**plan.repair.to_dict(), "record_id": "../x"}, {"record_id": "x"}):
        with pytest.raises(PlanError, match="'repair' needs record_id"):
            plan_from_dict({**plan.to_dict(), "repair": bad})
    assert plan_from_dict(plan.to_dict()) == plan


def test_records_of_a_plan_and_of_its_repair_are_two(model, tmp_path):
    plan, record = repaired(model, plan_of(model), tmp_path)
    corpus, settings = {"name": "a", "digest": "b"}, {"dtype": "float32", "seed": 1}
    new, old = (
        EvaluationRecord.new(model, each, corpus, settings) for each in (plan, plan.unrepaired)
    )
    assert new.record_id != old.record_id
    assert (new.plan.repair, new.plan.repaired_on) == (record.record_id, ("random.jsonl",))
    assert (old.plan.repair, old.plan.repaired_on) == ("", ())
    assert replace(plan, repair=None) == plan.unrepaired
