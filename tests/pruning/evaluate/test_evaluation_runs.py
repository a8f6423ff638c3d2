"""Evaluations that are kept, found again, completed and resumed."""

import pytest
from nonuniform_cases import keeps_of, plan_of

from analysis.calibration.loading import CalibrationSettings
from analysis.drain import drain
from analysis.model import load_model_index
from families.configs import BY_NAME, tiny_model
from pruning.evaluate import run as run_module
from pruning.evaluate.candidate import MeasureSettings, run_candidate
from pruning.evaluate.drawing import DrawnSamples
from pruning.evaluate.full_side import run_full
from pruning.evaluate.record import EvaluationStore, evaluation_table
from pruning.evaluate.result import Metric
from pruning.evaluate.run import Evaluations, run_evaluations
from pruning.evaluate.samples import make_samples
from pruning.plan import keep_all
from pruning.sizes import size_report

CASE = BY_NAME["mixtral"]


@pytest.fixture(scope="module")
def described(tmp_path_factory):
    path = tmp_path_factory.mktemp("mixtral") / "model"
    tiny_model(CASE).save_pretrained(path)
    return load_model_index(str(path))


@pytest.fixture
def work(described, make_sequences, tmp_path):
    def make(measures=("esap", "nll"), plans=None, corpora=1):
        plan = plan_of(described, CASE, keeps_of(CASE))
        drawn = [
            DrawnSamples(make_sequences((9, 5 + number, 12)), {"seed": 42, "drawn": "some"})
            for number in range(corpora)
        ]
        return Evaluations(
            described,
            plans or [plan, keep_all(described)],
            drawn,
            tuple(measures),
            CalibrationSettings(seq_len=12, dtype="float32", device="cpu", batch_size=2),
            EvaluationStore([tmp_path / "stats"]),
        )

    return make


def files_of(work):
    return sorted(path.name for path in work.store.path(_any(work)).parent.iterdir())


def _any(work):
    return run_module.known_records(work)[0][0]


def test_results_are_those_of_the_loaded_model(work, described):
    asked = work(("esap", "kl", "nll", "ppl"))
    pruned, whole = drain(run_evaluations(asked))
    model = tiny_model(CASE)
    side = drain(run_full(model, make_samples(asked.drawn[0].sequences, 2)))
    settings = MeasureSettings(("esap", "kl", "nll", "ppl"))
    wanted = drain(run_candidate(model, described.family, asked.plans[0], side, settings))
    assert pruned.metrics == wanted.metrics
    assert pruned.full == wanted.full == whole.full
    assert (whole.metrics["esap"].mean, whole.plan.removed) == (1, 0)
    report = size_report(described, asked.plans[0])
    assert pruned.plan.removed == pytest.approx(report.experts_removed / described.num_experts)
    assert pruned.plan.bytes_after == report.bytes_after
    assert (pruned.num_samples, pruned.num_tokens) == (3, 6 + 2 + 9)
    assert pruned.plan_digest == asked.plans[0].digest


def test_what_is_known_is_not_measured_again(work, monkeypatch):
    first = drain(run_evaluations(work(corpora=2)))
    monkeypatch.setattr(run_module, "load_model", None)  # calling it would fail
    steps = []
    assert drain(run_evaluations(work(corpora=2)), steps.append) == first
    assert [step.phase for step in steps] == ["cached"]


def test_only_missing_measures_are_added(work):
    before = drain(run_evaluations(work(("esap",))))
    after = drain(run_evaluations(work(("esap", "kl"))))
    assert [set(each.metrics) for each in before] == [{"esap"}] * 2
    assert [set(each.metrics) for each in after] == [{"esap", "kl"}] * 2
    assert [each.metrics["esap"] for each in after] == [each.metrics["esap"] for each in before]
    assert len(files_of(work())) == 2


def test_an_interrupted_run_keeps_what_was_finished(work):
    task = run_evaluations(work(corpora=2))
    asked = work(corpora=2)
    for _ in task:
        if asked.store.path(_any(asked)).is_file():
            break
    task.close()
    assert len(files_of(asked)) == 1
    again = drain(run_evaluations(asked))
    assert len(files_of(asked)) == 4
    assert len({each.record_id for each in again}) == 4


def test_speculative_acceptance_is_recorded_beside_the_others(work):
    (record, _) = drain(run_evaluations(work(("spec-dec",))))
    assert 0 < record.metrics["spec-dec"].mean < 1
    whole = drain(run_evaluations(work(("spec-dec",))))[1]
    assert whole.metrics["spec-dec"] == Metric(1, 1, 1, 1)


def test_files_read_back_as_they_were_written(work):
    asked = work()
    records = drain(run_evaluations(asked))
    assert asked.store.records(asked.model.identity) == sorted(
        records, key=lambda each: each.record_id
    )
    assert asked.store.records("another") == []
    table = evaluation_table(records)
    assert table["measure"].tolist() == ["esap", "nll"] * 2
    assert table.loc[table["measure"] == "esap", "full"].isna().all()
    assert table.loc[1, "full"] == records[0].full["nll"].mean


def test_progress_never_goes_back_nor_beyond_its_end(work):
    steps = []
    drain(run_evaluations(work(corpora=2)), steps.append)
    evaluating = [step for step in steps if step.phase == "evaluating"]
    done = [step.fraction for step in evaluating]
    assert done == sorted(done)
    assert done[-1] == 1
