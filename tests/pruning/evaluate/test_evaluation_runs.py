"""Evaluations that are kept, found again and resumed."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from forks import TESTS
from nonuniform_cases import keeps_of, plan_of
from two_evaluations import DENSE_FIRST, evaluate, many, outcomes

from analysis.drain import drain
from analysis.model.opening import load_model_index
from families.configs import BY_NAME
from families.tiny_models import tiny_model
from pruning.engine import run as run_module
from pruning.engine.candidate import MeasureSettings, run_candidate
from pruning.engine.full_side import run_full
from pruning.engine.run import run_evaluations
from pruning.engine.speculative import why_decoding_fails
from pruning.measures.result import Metric
from pruning.measures.samples import make_samples
from pruning.plan.plan import keep_all, kept_by_layer
from pruning.plan.sizes import size_report
from pruning.records.evaluation import evaluation_table

CASE = BY_NAME["mixtral"]


@pytest.fixture(scope="module")
def described(tmp_path_factory):
    path = tmp_path_factory.mktemp("mixtral") / "model"
    tiny_model(CASE).save_pretrained(path)
    return load_model_index(str(path))


@pytest.fixture
def work(described, ask):
    plans = [plan_of(described, CASE, keeps_of(CASE)), keep_all(described)]
    return lambda measures=("esap", "nll"), corpora=1: ask(
        described, plans, measures, corpora=corpora
    )


def files_of(work):
    return sorted(path for folder in work.store.folders() for path in folder.glob("*"))


def test_results_are_those_of_the_loaded_model(work, described):
    asked = work(("esap", "kl", "nll", "ppl"))
    pruned, whole = drain(run_evaluations(asked))
    model = tiny_model(CASE)
    side = drain(run_full(model, make_samples(asked.draws[0].sequences, 2)))
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
    by_id = sorted((pruned, whole), key=lambda record: record.record_id)
    assert asked.store.records(asked.model.identity) == by_id
    table = evaluation_table([pruned, whole])
    assert table["measure"].tolist() == ["esap", "kl", "nll", "ppl"] * 2
    assert table.loc[table["measure"] == "esap", "full"].isna().all()
    assert table.loc[2, "full"] == pruned.full["nll"].mean


def test_the_loss_of_every_sample_is_kept(work):
    (record, _) = drain(run_evaluations(work(("nll",))))
    losses = record.samples
    assert losses.tokens == (6, 2, 9)
    for sums, found in ((losses.nll, record.metrics["nll"]), (losses.full_nll, record.full["nll"])):
        assert np.mean(np.divide(sums, losses.tokens)) == pytest.approx(found.mean, abs=1e-6)
        assert sum(sums) / 17 == pytest.approx(found.pooled, abs=1e-6)
    # What was written, read again by its parts: two plans, each beside the original, on 3 samples.
    (shard,) = work().store.table.shards
    rows = [json.loads(line) for line in shard.read_text().splitlines()]
    assert [(row["plan"], row["count"]) for row in rows] == [
        (record.plan_digest, [6, 2, 9]),
        ("original", [6, 2, 9]),
        (keep_all(work().model).digest, [6, 2, 9]),
    ]
    assert losses.nll == pytest.approx(rows[0]["sum"][0], abs=1e-6)
    assert losses.full_nll == pytest.approx(rows[1]["sum"][0], abs=1e-6)
    whole = [layer.num_experts for layer in work().model.layers]
    assert [row["kept"] for row in rows[1:]] == [whole] * 2
    assert rows[0]["kept"] == list(kept_by_layer(work().plans[0], work().model))
    # Other measures leave them.
    (record, _) = drain(run_evaluations(work(("nll", "kl"))))
    assert record.samples == losses


def test_what_another_record_measured_of_the_plan_is_looked_up(work, monkeypatch):
    """Perplexity is counted from the loss, and an evaluation that is gone from its numbers."""
    first = drain(run_evaluations(work(("nll",))))
    for path in files_of(work()):
        path.unlink()
    monkeypatch.setattr(run_module, "load_model", None)  # calling it would fail
    again = drain(run_evaluations(work(("nll", "ppl"))))
    assert [set(record.metrics) for record in again] == [{"nll", "ppl"}] * 2
    assert [record.metrics["nll"] for record in again] == [
        record.metrics["nll"] for record in first
    ]
    assert [record.made["device"] for record in again] == ["cpu", "cpu"]
    assert len(files_of(work())) == 2


def test_a_damaged_line_is_told_and_what_it_was_of_is_measured_again(work):
    first = drain(run_evaluations(work(("nll",))))
    (shard,) = work().store.table.shards
    shard.write_bytes(shard.read_bytes().replace(b'"count":[6', b'"count":[7', 1))
    steps = []
    assert drain(run_evaluations(work(("nll",))), steps.append)[0].metrics == first[0].metrics
    (note,) = [step.note for step in steps if step.phase == "reading measurements"]
    assert note.startswith(f"Line 1 of the measurements {shard.name} cannot be read")
    assert "evaluating" in {step.phase for step in steps}


def test_what_is_known_is_not_measured_again(work, monkeypatch):
    first = drain(run_evaluations(work(corpora=2)))
    monkeypatch.setattr(run_module, "load_model", None)  # calling it would fail
    steps = []
    assert drain(run_evaluations(work(corpora=2)), steps.append) == first
    assert [step.phase for step in steps] == ["cached"]


def test_only_missing_measures_are_added(work):
    before = drain(run_evaluations(work(("esap",))))
    after = drain(run_evaluations(work(("esap", "kl"))))
    assert [set(record.metrics) for record in before] == [{"esap"}] * 2
    assert [set(record.metrics) for record in after] == [{"esap", "kl"}] * 2
    assert [record.metrics["esap"] for record in after] == [
        record.metrics["esap"] for record in before
    ]
    assert len(files_of(work())) == 2


def test_an_interrupted_run_keeps_what_was_finished(work):
    task = run_evaluations(work(corpora=2))
    asked = work(corpora=2)
    for _ in task:
        if files_of(asked):
            break
    task.close()
    assert len(files_of(asked)) == 1
    again = drain(run_evaluations(asked))
    assert len(files_of(asked)) == 4
    assert len({record.record_id for record in again}) == 4


@pytest.mark.skipif(bool(why_decoding_fails()), reason=why_decoding_fails())
def test_speculative_acceptance_is_recorded_beside_the_others(work):
    record, whole = drain(run_evaluations(work(("spec-dec",))))
    assert 0 < record.metrics["spec-dec"].mean < 1
    assert whole.metrics["spec-dec"] == Metric(1, 1, 1, 1)


def run_two(forks, root, what):
    """What each of two processes saw."""
    forks.ranks(TESTS / "two_evaluations.py", root, what)
    return [json.loads((root / f"seen-{rank}.json").read_text()) for rank in (0, 1)]


def test_two_processes_give_the_bits_of_one_whatever_their_stores_hold(forks, described, tmp_path):
    (tmp_path / "mixtral").symlink_to(described.checkpoint.path)
    first, other = run_two(forks, tmp_path, "stores")
    differ = first.pop("differ"), other.pop("differ")
    # Those that hold only the first layers run no original model of their own.
    phases = [seen[name].pop(0) for seen in (first, other) for name in ("new", "elsewhere")]
    assert ["running the original model" in names for names in phases] == [True, True, False, False]
    assert first == other
    assert first["many"] == outcomes(many(tmp_path, "alone"))
    assert len(first["many"]) == 6
    assert first["known"] == [["cached"], *first["new"]]
    # Measured again, as the first process lacks it, and saved there.
    assert first["elsewhere"] == first["new"]
    assert not (tmp_path / "empty").exists()
    reason = "It would evaluate something else than the first process"
    assert differ[0].startswith(f"OtherProcessError: Process 1 of 2 failed: {reason}")
    assert differ[1].startswith(f"StatsError: {reason}")


@pytest.mark.slow  # the test before has a family with experts in all layers, and several batches
def test_two_processes_with_hardly_anything_to_share(forks, described, tmp_path):
    (tmp_path / "mixtral").symlink_to(described.checkpoint.path)
    tiny_model(BY_NAME[DENSE_FIRST]).save_pretrained(tmp_path / DENSE_FIRST)
    single = replace(CASE, settings=CASE.settings | {"num_hidden_layers": 1})
    tiny_model(single).save_pretrained(tmp_path / "one-layer")
    undefined = tiny_model(CASE)
    with torch.no_grad():
        undefined.get_input_embeddings().weight.fill_(torch.nan)
    undefined.save_pretrained(tmp_path / "undefined")
    first, other = run_two(forks, tmp_path, "edges")
    assert first["dense"] == other["dense"] == outcomes(many(tmp_path, "alone", DENSE_FIRST))
    losses = [seen["single"][1] for seen in (first, other)]
    assert losses == [evaluate(tmp_path, "alone", (9,))[1]] * 2
    for name, reason in (
        ("one layer", "2 processes cannot share 1 layer; start at most 1."),
        ("undefined", "The measure nll of undefined"),
    ):
        kind, own = first[name].split(": ", 1)
        assert own.startswith(reason)
        assert kind != "OtherProcessError"
        assert other[name] == f"OtherProcessError: Process 0 of 2 failed: {own}"


def test_progress_never_goes_back_nor_beyond_its_end(work):
    steps = []
    drain(run_evaluations(work(corpora=2)), steps.append)
    evaluating = [step for step in steps if step.phase == "evaluating"]
    done = [step.fraction for step in evaluating]
    assert done == sorted(done)
    assert done[-1] == 1
    wholes = [step.whole.fraction for step in steps if step.whole]
    assert wholes == sorted(wholes)
    assert wholes[0] == 0
    assert wholes[-1] == pytest.approx(1)
