"""`moeprune evaluate` on small models: files, table, cache, bad input."""

import json

import pytest

from analysis.drain import drain
from app.jobs.kinds import KINDS
from pruning.requests.base import validated
from pruning.requests.evaluation import EvaluateRequest


@pytest.fixture
def plan(works, tiny, corpora, stats, here):
    works(
        *("plan", tiny, "--criterion", "reap", "--corpus", corpora[0], "--sparsity", "50%"),
        *("--stats-dir", stats, "-o", "plan.json"),
    )
    return here / "plan.json"


def test_it_writes_one_result_and_keeps_it(works, tiny, corpora, plan, here):
    words = ("evaluate", tiny, "--plan", plan, "--corpus", corpora[1], "--samples", "4")
    words += ("--seq-len", "9", "--stats-dir", here / "own", "--measures", "esap,nll")
    printed = works(*words)
    result = json.loads((here / "result.json").read_text())
    assert set(result["metrics"]) == {"esap", "nll"}
    assert set(result["metrics"]["esap"]) == {"mean", "pooled", "low", "high"}
    assert result["schema_version"] == 1
    assert (result["num_samples"], result["corpus"]["name"]) == (4, "blue.jsonl")
    assert result["plan"]["criterion"] == "reap"
    assert f"{result['metrics']['esap']['mean']:.4f}" in printed
    assert "no calibration of this model is known" in printed
    (kept,) = (here / "own" / "evaluations").iterdir()
    assert json.loads(kept.read_text()) == result
    before = kept.stat().st_mtime_ns
    works(*words)
    assert kept.stat().st_mtime_ns == before


def test_several_plans_and_corpora_stand_in_one_file(works, tiny, corpora, plan, stats, here):
    works(
        *("evaluate", tiny, "--plan", plan, "--plan", plan, "--seq-len", "9"),
        *("--corpus", corpora[0], "--corpus", corpora[1], "-o", "all.json"),
        *("--stats-dir", here / "own"),
    )
    results = json.loads((here / "all.json").read_text())["evaluations"]
    assert [each["corpus"]["name"] for each in results] == ["red.jsonl"] * 2 + ["blue.jsonl"] * 2


def test_documents_that_calibration_read_are_not_evaluated_on(works, tiny, corpora, stats):
    printed = works("evaluate", tiny, "--corpus", corpora[0], "--stats-dir", stats)
    # The small corpus was read whole.
    assert "calibration may have read some of these documents" in printed


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--measures", "esp"), "Unknown measure 'esp'. Did you mean 'esap'?"),
        (("--samples", "0"), "--samples: Input should be greater than or equal to 1"),
        (("--count", "answers"), "--count: Input should be 'auto', 'all' or 'response'"),
        (("--offload-folder", "x"), "need --device-map auto"),
        (("-o", "no/such/result.json"), "folder of no/such/result.json does not exist"),
        (("--dtype", "int8"), "--dtype: Input should be 'auto', 'float32'"),
    ],
)
def test_bad_input_is_one_line_and_writes_nothing(moeprune, tiny, corpora, here, words, message):
    outcome = moeprune("evaluate", tiny, "--corpus", corpora[0], *words)
    assert outcome.code == 1
    assert message in outcome.err
    assert len(outcome.err.strip().splitlines()) == 1
    assert not (here / "result.json").exists()


def test_tokens_of_another_model_are_refused(moeprune, tiny, here):
    (here / "far.jsonl").write_text(json.dumps({"input_ids": [5, 6, 9999]}) + "\n")
    outcome = moeprune("evaluate", tiny, "--corpus", "far.jsonl")
    assert outcome.code == 1
    assert "has the token id 9999, but tiny has 96 tokens" in outcome.err


def test_a_plan_of_another_model_is_refused(moeprune, other, corpora, plan):
    outcome = moeprune("evaluate", other, "--plan", plan, "--corpus", corpora[0])
    assert outcome.code == 1
    assert "The plan was made for tiny" in outcome.err


def test_the_shown_command_line_asks_the_same(tiny):
    request = validated(
        EvaluateRequest,
        {"model": str(tiny), "corpora": ("demo-math",), "plans": ({},), "samples": 8},
    )
    assert request.command() == (
        f"moeprune evaluate {tiny} --plan plan.json --corpus demo-math --samples 8 -o result.json"
    )


def test_it_is_a_kind_of_job(tiny, corpora, stats, here):
    raw = {"model": str(tiny), "corpora": [str(corpora[1])], "seq_len": 9, "stats_dir": str(here)}
    result = drain(KINDS["evaluate"].run(raw))
    (name,) = result["evaluations"]
    assert (here / "evaluations" / f"{name}.json").is_file()
