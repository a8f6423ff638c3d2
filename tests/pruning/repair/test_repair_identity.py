"""What a repair is called: by its content, so that nothing quotes other weights under its name."""

import json
import shutil
from dataclasses import replace

import pytest
from safetensors.torch import load_file, save_file

from analysis.calibration.loading import CalibrationSettings
from analysis.drain import drain
from analysis.errors import PlanError
from analysis.files.content import file_sha256
from analysis.files.naming import digest_of
from analysis.model.opening import load_model_index
from analysis.stats.store import StatsStore
from builders.repairs import plan_for, token_sequences
from pruning.plan.plan import fit_plan
from pruning.plan.plan_file import plan_from_dict
from pruning.records.repair import RepairStore
from pruning.records.repair_files import if_here
from pruning.repair import solver
from pruning.repair.method import GATHERING, method, solved_example
from pruning.repair.run import repair_plan
from pruning.tasks.loading import open_plan

SECOND_FILE = "layer-00002.safetensors"


@pytest.fixture(scope="session")
def model(checkpoint):
    return load_model_index(str(checkpoint("qwen3_moe").path))


@pytest.fixture(scope="session")
def plan(model):
    return plan_for(model)


@pytest.fixture(scope="session")
def repair(model, plan):
    """Repairs the plan into a folder, or finds it there; the record."""

    def run(stats, rows=12):
        settings = CalibrationSettings(24, batch_size=4, device="cpu")
        corpora = [token_sequences(rows, 24)]
        return drain(repair_plan(model, plan, corpora, settings, RepairStore([stats])))

    return run


@pytest.fixture
def made(repair, plan, tmp_path):
    """A statistics folder with a repair, its record, and plan.json of the repaired plan."""
    record = repair(tmp_path)
    return tmp_path, record, replace(plan, repair=record.reference).to_dict()


def test_the_identity_covers_plan_text_and_bytes(made):
    stats, record, raw = made
    folder = RepairStore([stats]).path(record).with_suffix("")
    files = {path.name: file_sha256(path) for path in folder.iterdir()}
    named = {"plan": record.plan_digest, "corpora": ["random.jsonl"], "tokens": 288}  # 12 x 24
    assert record.digest == digest_of({**named, "files": files})
    assert record.record_id.endswith(record.digest[:8])
    assert raw["repair"]["digest"] == record.digest != record.request_digest


def test_another_solver_gives_another_repair_in_the_same_folder(made, repair, plan, monkeypatch):
    stats, record, _ = made
    assert repair(stats) == record
    monkeypatch.setattr(solver, "ITERATIONS", solver.ITERATIONS - 1)
    monkeypatch.setattr(solver.System.solve, "__defaults__", (solver.ITERATIONS,))
    other = repair(stats)
    assert other.files.keys() == record.files.keys()
    assert other.record_id != record.record_id
    plans = [
        replace(plan, repair=repair_record.reference).digest for repair_record in (record, other)
    ]
    assert plans[0] != plans[1]
    # Each is found by the solver that made it.
    assert repair(stats) == other
    monkeypatch.undo()
    assert repair(stats) == record


@pytest.mark.parametrize(
    "change",
    [
        pytest.param({"DAMPINGS": (0.02, 0.1, 1.0)}, id="dampings"),
        pytest.param({"SAMPLE_COLUMNS": 4}, id="columns"),
    ],
)
def test_the_method_notices_every_choice_of_the_solver(monkeypatch, change):
    before = method()
    for name, value in change.items():
        monkeypatch.setattr(solver, name, value)
    assert method() != before


def test_the_method_is_the_same_on_every_machine():
    # Sums in another order and other sines differ by some 1e-15 of the largest term; no number
    # may lie so near to where its rounding turns.
    for value, text in zip(solved_example(), method()["solver"], strict=True):
        for factor in (1 - 1e-10, 1 + 1e-10):
            assert f"{value * factor:.6g}" == text


# Error left on held-out tokens, by layer, for each way to gather what is fitted. A change of these
# numbers needs a `GATHERING` of its own, so that no earlier repair is taken for the new one.
LEFT = {1: {0: 0.743647, 2: 0.964218, 3: 0.884764}}


def test_another_way_to_gather_has_another_number(made):
    _, record, _ = made
    left = {layer.layer: layer.left for layer in record.layers}
    assert left == pytest.approx(LEFT[GATHERING], rel=1e-4)


class TestRefused:
    """A plan whose repair has another content, in one line, wherever it is opened."""

    def refusal(self, raw, model, stats):
        messages = set()
        for opened in (
            lambda: open_plan(raw, model, StatsStore(stats)),
            lambda: if_here(fit_plan(plan_from_dict(raw), model), [stats]),
        ):
            with pytest.raises(PlanError) as error:
                opened()
            messages.add(str(error.value))
        (message,) = messages
        assert "\n" not in message
        assert "moeprune repair" in message
        return message

    def test_changed_weights(self, made, model, repair):
        stats, record, raw = made
        # Twice the weights, as valid safetensors of the same size.
        path = RepairStore([stats]).path(record).with_suffix("") / SECOND_FILE
        doubled = {key: 2 * tensor for key, tensor in load_file(path).items()}
        save_file(doubled, path, metadata={"transposed": "0"})
        weights = path.read_bytes()
        assert f"{SECOND_FILE} was changed" in self.refusal(raw, model, stats)
        # Made again in their place.
        assert repair(stats).digest == record.digest
        assert open_plan(raw, model, StatsStore(stats)).repair == record.reference
        assert path.read_bytes() != weights

    def test_another_repair_under_its_name(self, made, model, repair):
        stats, record, raw = made
        other = repair(stats, rows=10)
        folder = RepairStore([stats]).path(record).parent
        shutil.rmtree(folder / record.record_id)
        shutil.copytree(folder / other.record_id, folder / record.record_id)
        assert "is not what was made" in self.refusal(raw, model, stats)
        # Its record too.
        text = (folder / f"{other.record_id}.json").read_text()
        (folder / f"{record.record_id}.json").write_text(text)
        assert f"of another content ({record.digest[:8]})" in self.refusal(raw, model, stats)

    @pytest.mark.parametrize(
        "change", [{"digest": "0" * 64}, {"tokens": 65_536}, {"corpora": ["other"]}], ids=json.dumps
    )
    def test_a_plan_that_names_another_content(self, made, model, change):
        stats, _, raw = made
        raw["repair"] |= change
        assert "of another content" in self.refusal(raw, model, stats)
