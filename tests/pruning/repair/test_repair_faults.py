"""Faults around repairs: files that are gone, processes without a batch, values that cannot be."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from launching import torchrun
from safetensors.torch import load_file

from analysis.calibration.loading import CalibrationSettings, Placement
from analysis.drain import drain
from analysis.errors import StatsError, UserError
from analysis.model import load_model_index
from analysis.stats.store import StatsStore
from builders import edit_json, resealed
from builders.repairs import token_sequences
from pruning.evaluate.drawing import DrawnSamples
from pruning.evaluate.record import EvaluationStore
from pruning.evaluate.run import Evaluations, run_evaluations
from pruning.plan import PruningPlan, fit_plan, model_ref, plan_from_dict
from pruning.repair.record import RepairRecord, RepairStore
from pruning.repair.run import repair_plan
from pruning.tasks.loading import open_plan

HERE = Path(__file__).parent
ROWS = token_sequences(12, 8)
KEPT = {0: (0, 2, 3, 5), 1: (1, 2, 4, 6), 2: (0, 1, 3)}


def plan_for(model):
    return fit_plan(PruningPlan(model_ref(model), KEPT), model)


def repair(model, stats, plan=None, corpora=(ROWS,), batch_size=4, **changes):
    """The task of a repair."""
    placement = Placement(stream_layers=True, **changes)
    settings = CalibrationSettings(8, batch_size=batch_size, device="cpu", placement=placement)
    plan = plan or plan_for(model)
    return repair_plan(model, plan, list(corpora), settings, RepairStore([stats]))


def plan_with(model, stats, record):
    return replace(plan_for(model), repair=record.reference.among([stats]))


def layers_of(stats):
    """Name -> bytes of the layers' files."""
    return {path.name: path.read_bytes() for path in stats.glob("repairs/*/*.safetensors")}


def names_in(stats):
    return {path.name for path in stats.rglob("*") if path.is_file()}


def says(error):
    """Its message, which is one line."""
    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.fixture(scope="module")
def whole(tmp_path_factory, checkpoint):
    """The folder of a repair that nothing disturbed, and its record."""
    stats = tmp_path_factory.mktemp("whole")
    model = load_model_index(str(checkpoint("olmoe").path))
    return stats, drain(repair(model, stats))


class TestSameBytes:
    """However it runs, a repair gives the same files."""

    @pytest.mark.parametrize("damage", [Path.unlink, lambda path: path.write_bytes(b"no")])
    def test_one_whose_files_are_gone_is_made_again(self, whole, olmoe, tmp_path, damage):
        drain(repair(olmoe, tmp_path))
        damage(sorted(tmp_path.glob("repairs/*/*.safetensors"))[1])
        drain(repair(olmoe, tmp_path))
        assert layers_of(tmp_path) == layers_of(whole[0])

    def test_from_hidden_states_on_disk(self, whole, olmoe, tmp_path):
        seen = set()
        for_states = tmp_path / "states"
        drain(
            repair(olmoe, tmp_path / "stats", hidden_states_dir=for_states),
            lambda _: seen.update(for_states.rglob("*.safetensors")),
        )
        assert len(seen) > 12
        assert not list(for_states.rglob("*"))
        assert layers_of(tmp_path / "stats") == layers_of(whole[0])

    @pytest.mark.parametrize(
        ("stop", "layers"),
        [("fitting layer 0", 0), ("observing layer 1", 1), ("fitting layer 2", 2)],
    )
    def test_stopped_and_resumed(self, whole, olmoe, tmp_path, stop, layers):
        places = {"hidden_states_dir": tmp_path / "states"}
        running = repair(olmoe, tmp_path / "stats", **places)
        next(step for step in running if step.phase == stop)
        running.close()
        assert not list((tmp_path / "states").rglob("*"))
        assert len(layers_of(tmp_path / "stats")) == layers
        steps = []
        record = drain(repair(olmoe, tmp_path / "stats", **places), steps.append)
        fitted = {step.phase for step in steps if step.phase.startswith("fitting")}
        assert fitted == {f"fitting layer {layer}" for layer in range(layers, 3)}
        assert record.layers == whole[1].layers
        assert layers_of(tmp_path / "stats") == layers_of(whole[0])
        assert names_in(tmp_path / "stats") == names_in(whole[0])


@pytest.fixture(scope="module")
def by_two(tmp_path_factory, checkpoint):
    """The folders of repairs by two processes: of three batches, and of one."""
    root = tmp_path_factory.mktemp("two")
    with torchrun(HERE / "two_repairs.py", checkpoint("olmoe").path, root) as launcher:
        _, complaints = launcher.communicate(timeout=120)
    assert launcher.returncode == 0, complaints
    return root


@pytest.mark.slow  # tests/analysis/test_distributed.py has two processes that calibrate
@pytest.mark.parametrize("batch_size", [4, 12])
def test_two_processes_give_the_weights_of_one(by_two, olmoe, tmp_path, batch_size):
    # Of one batch, the second process has none.
    alone = drain(repair(olmoe, tmp_path, batch_size=batch_size))
    (record,) = RepairStore([by_two / str(batch_size)]).records()
    assert (record.made["processes"], alone.made["processes"]) == (2, 1)
    assert (record.record_id, record.digest) == (alone.record_id, alone.digest)
    for one, two in zip(alone.layers, record.layers, strict=True):
        assert (two.damping, two.tokens, two.target) == (one.damping, one.tokens, one.target)
        assert two.held_out == pytest.approx(one.held_out, rel=1e-3)
    for name in alone.files:
        mine, other = (
            load_file(next(stats.glob(f"repairs/*/{name}")))
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


def test_a_repaired_plan_has_evaluations_of_its_own_also_streamed(whole, olmoe, tmp_path):
    stats, record = whole
    plan = plan_with(olmoe, stats, record)
    plans = [plan.unrepaired, plan]
    alone, streamed = (
        evaluated(olmoe, plans, tmp_path / str(streams), stream_layers=streams)
        for streams in (False, True)
    )
    assert [each.metrics for each in streamed] == [each.metrics for each in alone]
    pruned, repaired = alone
    assert repaired.record_id != pruned.record_id
    assert repaired.metrics["kl"].mean < pruned.metrics["kl"].mean
    assert (pruned.plan.repair, pruned.plan.repaired_on) == ("", ())
    assert (repaired.plan.repair, repaired.plan.repaired_on) == (record.record_id, (ROWS.corpus,))


class TestRefusals:
    """What cannot be repaired or read, in one line."""

    @pytest.mark.parametrize(
        ("damage", "message"),
        [
            (Path.unlink, "lacks layer-00001"),
            (lambda path: path.write_bytes(path.read_bytes()[:-9]), "layer-00001.* was changed"),
            (lambda path: path.write_bytes(b"\1" * 99), "layer-00001.* was changed"),
        ],
    )
    def test_a_plan_whose_files_are_not_those_of_the_record(self, olmoe, tmp_path, damage, message):
        record = drain(repair(olmoe, tmp_path))
        raw = plan_with(olmoe, tmp_path, record).to_dict()
        assert open_plan(raw, olmoe, StatsStore(tmp_path)).repair == record.reference
        damage(next(tmp_path.rglob("layer-00001.safetensors")))
        with pytest.raises(UserError, match=message) as error:
            open_plan(raw, olmoe, StatsStore(tmp_path))
        assert "make it again" in says(error)

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
    def test_a_plan_with_a_malformed_repair(self, olmoe, repair):
        raw = {**plan_for(olmoe).to_dict(), "repair": repair}
        with pytest.raises(UserError) as error:
            plan_from_dict(raw)
        assert "'repair' needs record_id" in says(error)


def put(*path, to):
    """Set what lies at the end of a path of keys and positions."""

    def change(raw):
        *where, last = path
        for key in where:
            raw = raw[key]
        raw[last] = to

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (put("layers", 0, "layer", to=-1), "layer: "),
        (put("layers", 0, "target", to="norm"), "target: "),
        (put("layers", 0, "damping", to=-0.1), "damping: "),
        (put("layers", 0, "damping", to=0.5), "damping 0.5 is none of"),
        (put("layers", 0, "held_out", "0.1", to=-1.0), "held_out"),
        (put("layers", 0, "held_out", to={"much": 0.5}), "damping .* is none of much"),
        (put("layers", 0, "rounding", to=-1.0), "rounding: "),
        (put("layers", 1, "layer", to=0), "it has layers 0, 0, 2"),
        (put("files", to={}), "it has files"),
        (put("files", "../plan.json", to="0" * 64), "it has files"),
        (put("layers", to=[]), "it has files"),
        (lambda raw: raw.update(layers=[], files={}), "no results"),
    ],
)
def test_records_with_impossible_values_are_refused(whole, change, message):
    stats, record = whole
    raw = json.loads(RepairStore([stats]).path(record).read_text())
    assert RepairRecord.from_json(resealed(raw), "a.json") == record
    change(raw)
    with pytest.raises(StatsError, match=message) as error:
        RepairRecord.from_json(resealed(raw), "a.json")
    assert "moeprune repair" in says(error)


def test_a_record_that_was_changed_is_refused(whole, tmp_path):
    stats, record = whole
    file = tmp_path / "a.json"
    file.write_text(RepairStore([stats]).path(record).read_text())
    edit_json(file, files={**record.files, "layer-00001.safetensors": "0" * 64})
    with pytest.raises(StatsError, match="differs"):
        RepairRecord.read(file)
