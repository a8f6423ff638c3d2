"""Runs of repairs: the same bytes however they run, and one line where they cannot."""

import json
import os
import shutil
import signal
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from filelock import FileLock
from forks import TESTS
from safetensors.torch import load_file

from analysis.calibration import blocks
from analysis.calibration.loading import CalibrationSettings, Placement
from analysis.drain import drain
from analysis.errors import CheckpointError, PlanError, StatsError, UserError
from analysis.model.opening import load_model_index
from builders import resealed
from builders.repairs import KEPT, plan_for, token_sequences
from pruning.engine.masking import masked
from pruning.engine.run import Evaluations, run_evaluations
from pruning.measures.drawn_samples import DrawnSamples
from pruning.plan.plan import keep_all
from pruning.plan.plan_file import plan_from_dict
from pruning.records.evaluation import EvaluationStore
from pruning.records.repair import RepairStore
from pruning.records.repair_files import with_repair_files
from pruning.repair.run import repair_plan

HERE = Path(__file__).parent
ROWS = token_sequences(12, 24)


def repair(model, stats, plan=None, corpora=(ROWS,), batch_size=4, **changes):
    placement = Placement(stream_layers=True, **changes)
    settings = CalibrationSettings(24, batch_size=batch_size, device="cpu", placement=placement)
    plan = plan or plan_for(model)
    return repair_plan(model, plan, list(corpora), settings, RepairStore([stats]))


def plan_with(model, stats, record):
    return with_repair_files(replace(plan_for(model), repair=record.reference), [stats])


def layers_of(stats):
    return {path.name: path.read_bytes() for path in stats.rglob("repairs/*/*.safetensors")}


def names_in(stats):
    return {path.name for path in stats.rglob("*") if path.is_file()}


def says(error):
    """Its message, which is one line."""
    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.fixture(scope="session")
def model(checkpoint):
    return load_model_index(str(checkpoint("qwen3_moe").path))


@pytest.fixture(scope="module")
def whole(tmp_path_factory, model):
    """The folder of a repair that nothing disturbed, and its record."""
    stats = tmp_path_factory.mktemp("whole")
    return stats, drain(repair(model, stats))


KILLED = """
import os, signal, sys
from pathlib import Path
import torch
from test_repair_faults import repair
from analysis.model.opening import load_model_index
# As many threads as there: others add in another order.
torch.set_num_threads(int(sys.argv[3]))
model, stats = load_model_index(sys.argv[1]), Path(sys.argv[2])
for step in repair(model, stats):
    if len(list(stats.glob("repairs/*/*.json"))) == 1:
        os.kill(os.getpid(), signal.SIGKILL)
"""


class TestSameBytes:
    """However it runs, a repair gives the same files."""

    @pytest.mark.parametrize("damage", [Path.unlink, lambda path: path.write_bytes(b"no")])
    def test_one_whose_files_are_gone_is_made_again(self, whole, model, tmp_path, damage):
        shutil.copytree(whole[0], tmp_path, dirs_exist_ok=True)
        damage(sorted(tmp_path.rglob("repairs/*/*.safetensors"))[1])
        drain(repair(model, tmp_path))
        assert layers_of(tmp_path) == layers_of(whole[0])

    def test_from_hidden_states_on_disk(self, whole, model, tmp_path):
        seen = set()
        for_states = tmp_path / "states"
        drain(
            repair(model, tmp_path / "stats", hidden_states_dir=for_states),
            lambda _: seen.update(for_states.rglob("*.safetensors")),
        )
        assert len(seen) > 12
        assert not list(for_states.rglob("*"))
        assert layers_of(tmp_path / "stats") == layers_of(whole[0])
        assert [step.phase for step in repair(model, tmp_path / "stats")] == ["cached"]

    @pytest.mark.parametrize(
        ("stop", "layers"), [("fitting 0", 0), ("observing 2", 1), ("fitting 3", 2)]
    )
    def test_stopped_and_resumed(self, whole, model, tmp_path, stop, layers):
        places = {"hidden_states_dir": tmp_path / "states"}
        running = repair(model, tmp_path / "stats", **places)
        next(step for step in running if step.phase + step.at.removeprefix("layer") == stop)
        running.close()
        assert not list((tmp_path / "states").rglob("*"))
        assert len(layers_of(tmp_path / "stats")) == layers
        steps = []
        record = drain(repair(model, tmp_path / "stats", **places), steps.append)
        fitted = {step.at for step in steps if step.phase == "fitting"}
        assert fitted == {f"layer {layer}" for layer in list(KEPT)[layers:]}
        # What was fitted before is done from the start, and no work of this run.
        first, *_, last = (step.whole for step in steps if step.whole)
        assert {kind: done for kind, done in first.done.items() if done} == first.before
        assert first.before.keys() == ({"observe", "fit", "invert"} if layers else set())
        assert last.fraction == pytest.approx(1)
        assert record.layers == whole[1].layers
        assert layers_of(tmp_path / "stats") == layers_of(whole[0])
        assert names_in(tmp_path / "stats") == names_in(whole[0])

    def test_a_layer_whose_notes_are_damaged_is_fitted_again(self, whole, model, tmp_path):
        running = repair(model, tmp_path)
        next(step for step in running if (step.phase, step.at) == ("fitting", "layer 2"))
        running.close()
        (notes,) = tmp_path.glob("repairs/*/*.json")
        notes.write_bytes(notes.read_bytes()[:10])
        fitted = [step.at for step in repair(model, tmp_path) if step.phase == "fitting"]
        assert len({*fitted}) == len(KEPT)
        assert layers_of(tmp_path) == layers_of(whole[0])

    @pytest.mark.parametrize("at_once", [1, 4])
    def test_with_experts_in_blocks(self, whole, model, tmp_path, at_once):
        places, steps = {"experts_at_once": at_once}, []
        record = drain(repair(model, tmp_path, **places), steps.append)
        assert record.layers == whole[1].layers
        assert layers_of(tmp_path) == layers_of(whole[0])
        assert names_in(tmp_path) == names_in(whole[0])
        assert [step.note for step in steps if "experts at once" in step.note]
        assert [step.whole.fraction for step in steps if step.whole][-1] == pytest.approx(1)

    def test_in_blocks_from_disk_stopped_and_resumed(self, whole, model, tmp_path):
        places = {"experts_at_once": 2, "hidden_states_dir": tmp_path / "states"}
        running = repair(model, tmp_path / "stats", **places)
        next(step for step in running if (step.phase, step.at) == ("fitting", "layer 3"))
        assert list((tmp_path / "states").rglob("fit/*"))
        running.close()
        assert not list((tmp_path / "states").rglob("*"))
        steps = []
        drain(repair(model, tmp_path / "stats", **places), steps.append)
        assert {step.at for step in steps if step.phase == "fitting"} == {"layer 3"}
        assert steps[-1].whole.fraction == pytest.approx(1)
        assert layers_of(tmp_path / "stats") == layers_of(whole[0])

    @pytest.mark.slow
    def test_killed_and_resumed(self, forks, whole, model, tmp_path):
        paths = os.pathsep.join(map(str, (TESTS.parent, TESTS, HERE)))
        words = (model.checkpoint.path, tmp_path / "killed", torch.get_num_threads())
        environment = {**os.environ, "PYTHONPATH": paths}
        ended = forks.run("-c", KILLED, *words, folder=tmp_path, environment=environment)
        assert ended.code == -signal.SIGKILL, ended.err
        drain(repair(model, tmp_path / "killed"))
        assert layers_of(tmp_path / "killed") == layers_of(whole[0])


@pytest.fixture(scope="module")
def by_two(forks, tmp_path_factory, checkpoint):
    """The folders of repairs by two processes: of three batches, and of one."""
    root = tmp_path_factory.mktemp("two")
    forks.ranks(HERE / "two_repairs.py", checkpoint("qwen3_moe").path, root)
    return root


@pytest.mark.slow  # tests/analysis/test_distributed.py has two processes that calibrate
@pytest.mark.parametrize("batch_size", [4, 12])
def test_two_processes_give_the_weights_of_one(by_two, model, tmp_path, batch_size):
    # Of one batch, the second process has none.
    alone = drain(repair(model, tmp_path, batch_size=batch_size))
    (record,) = RepairStore([by_two / str(batch_size)]).records()
    assert (record.made["processes"], alone.made["processes"]) == (2, 1)
    # The same request; sums in another order may differ in the last bits, and so the identity.
    assert record.request_digest == alone.request_digest
    for one, two in zip(alone.layers, record.layers, strict=True):
        assert (two.damping, two.tokens, two.target) == (one.damping, one.tokens, one.target)
        assert two.held_out == pytest.approx(one.held_out, rel=1e-3)
    for name in alone.files:
        mine, other = (
            load_file(next(stats.rglob(f"repairs/*/{name}")))
            for stats in (tmp_path, by_two / str(batch_size))
        )
        assert mine.keys() == other.keys()
        for key, tensor in mine.items():
            torch.testing.assert_close(other[key], tensor, rtol=1e-3, atol=1e-4)


def evaluated(model, plans, stats, **placed):
    settings = CalibrationSettings(8, batch_size=4, device="cpu", placement=Placement(**placed))
    drawn = [DrawnSamples(token_sequences(5, 8, seed=3), {"seed": 42, "drawn": "some"})]
    store = EvaluationStore([stats])
    return drain(run_evaluations(Evaluations(model, plans, drawn, ("kl", "nll"), settings, store)))


def test_an_expert_larger_than_memory_is_refused_before_anything_is_read(
    model, tmp_path, monkeypatch
):
    monkeypatch.setattr(blocks, "free_memory", lambda: 1000)
    refused = r"cannot be repaired: with 1 of a layer's experts at once it takes .* is free; try"
    with pytest.raises(UserError, match=refused) as error:
        drain(repair(model, tmp_path))
    says(error)
    assert not names_in(tmp_path)


def test_a_repaired_plan_has_evaluations_of_its_own_also_streamed(whole, model, tmp_path):
    stats, record = whole
    plan = plan_with(model, stats, record)
    plans = [plan.unrepaired, plan]
    alone, streamed, in_blocks = (
        evaluated(model, plans, tmp_path / str(number), **placed)
        for number, placed in enumerate(
            ({}, {"stream_layers": True}, {"stream_layers": True, "experts_at_once": 3})
        )
    )
    metrics = [evaluation.metrics for evaluation in alone]
    assert [evaluation.metrics for evaluation in streamed] == metrics
    assert [evaluation.metrics for evaluation in in_blocks] == metrics
    pruned, repaired = alone
    assert repaired.record_id != pruned.record_id
    assert repaired.metrics["kl"].mean < pruned.metrics["kl"].mean
    assert (pruned.plan.repair, pruned.plan.repaired_on) == ("", ())
    assert (repaired.plan.repair, repaired.plan.repaired_on) == (record.record_id, (ROWS.corpus,))


class TestRefusals:
    """What cannot be repaired or read, in one line."""

    def test_what_cannot_be_repaired(self, whole, model, tmp_path):
        repaired = plan_with(model, *whole)
        for plan, message in ((repaired, "is repaired already"), (keep_all(model), "removes not")):
            with pytest.raises(StatsError, match=message):
                drain(repair(model, tmp_path, plan))
        with pytest.raises(StatsError, match="judges on others"):
            drain(repair(model, tmp_path, corpora=[token_sequences(1, 8)]))
        task = repair(model, tmp_path)
        next(task)
        (lock,) = tmp_path.glob("repairs/.*.lock")
        task.close()
        with FileLock(lock), pytest.raises(StatsError, match="made by another process"):
            drain(repair(model, tmp_path))

    def test_a_damaged_repair_is_named(self, whole, checkpoint, model, tmp_path):
        shutil.copytree(whole[0], tmp_path, dirs_exist_ok=True)
        plan = plan_with(model, tmp_path, whole[1])
        file = plan.repair.folder / "layer-00002.safetensors"
        file.write_bytes(file.read_bytes()[:100])
        loaded = checkpoint("qwen3_moe").model
        with masked(loaded, model.family, plan), pytest.raises(CheckpointError, match=file.name):
            loaded(torch.arange(3, 9)[None], use_cache=False)
        (path,) = tmp_path.rglob("repairs/*.json")
        raw = json.loads(path.read_text())
        raw["layers"][0]["held_out"]["0.1"] = -1
        path.write_text(resealed(raw))
        problems = []
        assert not RepairStore([tmp_path]).records(on_problem=problems.append)
        assert "held_out" in str(problems[0])
        path.unlink()
        with pytest.raises(PlanError, match="not in the statistics folder"):
            with_repair_files(plan_from_dict(plan.to_dict()), [tmp_path])
        assert plan_from_dict(plan.to_dict()) == plan

    @pytest.mark.parametrize(
        "repair",
        [
            *(7, "id", [], {}),
            {"record_id": "../up", "digest": "d", "corpora": [], "tokens": 1},
            {"record_id": "a/b", "digest": "d", "corpora": [], "tokens": 1},
            {"record_id": "..", "digest": "d", "corpora": [], "tokens": 1},
            {"record_id": "a", "digest": 3, "corpora": [], "tokens": 1},
            {"record_id": "a", "digest": "d", "corpora": "text", "tokens": 1},
            {"record_id": "a", "digest": "d", "corpora": [3], "tokens": 1},
            {"record_id": "a", "digest": "d", "corpora": [], "tokens": "many"},
            {"record_id": "a", "digest": "d", "corpora": [], "tokens": True},
            {"record_id": "a", "digest": "d", "corpora": [], "tokens": -1},
            {"record_id": "a", "digest": "d", "corpora": [], "tokens": 1, "more": 1},
        ],
        ids=json.dumps,
    )
    def test_a_plan_with_a_malformed_repair(self, model, repair):
        raw = {**plan_for(model).to_dict(), "repair": repair}
        with pytest.raises(UserError) as error:
            plan_from_dict(raw)
        assert "'repair' needs record_id" in says(error)
