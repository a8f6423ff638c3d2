"""`moeprune paths`: the paper's plan, a budget, ablations; what is missing is said."""

import json

import pandas as pd
import pytest

from analysis.corpora.spec import corpus_name
from analysis.model.opening import load_model_index
from builders import tiny_checkpoint
from builders.tokens import write_ids
from pruning.plan.plan import PruningPlan, model_ref
from pruning.plan.plan_file import load_plan
from pruning.plan.sizes import size_report
from pruning.requests.machine import Machine
from pruning.requests.recipe import Recipe
from pruning.requests.recipe_steps import calibrate_requests


@pytest.fixture
def calibrated(works, here):
    """A tiny model `model` with the samples of one corpus."""
    tiny_checkpoint(here / "model", "olmoe")
    rows = [[5, 6, 7, 8], [9, 10, 11], [40, 41, 42, 43, 44]]
    write_ids(here / "rows.jsonl", rows)
    words = ("--corpus", "rows.jsonl", "--tokens", "64", "--seq-len", "8", "--stats-dir", "stats")
    works("calibrate", "model", *words, "--group", "dense")
    return here


def test_the_union_of_the_paths(works, calibrated):
    said = works("paths", "model", "--top-m", "3", "--table", "paths.csv", "--stats-dir", "stats")
    assert "first 3 paths of 3 samples" in said
    plan = json.loads((calibrated / "plan.json").read_text())
    assert plan["criterion"] == "pathfinder"
    assert plan["corpora"] == [corpus_name("rows.jsonl")]
    table = pd.read_csv(calibrated / "paths.csv")
    for layer, rows in table[table["num_samples"] > 0].groupby("layer"):
        assert set(rows["expert"]) <= set(plan["kept"][str(layer)])
    # 3 layers of 7; the plan loads and is shown like any other.
    assert "paths" in works("plans", "show", "plan.json")


@pytest.mark.parametrize("weights", ["both", "importance", "transition"])
def test_a_budget_is_spent_exactly(works, calibrated, weights):
    works(
        *("paths", "model", "--sparsity", "50%", "--path-weights", weights, "--stats-dir", "stats"),
        *("-o", f"{weights}.json"),
    )
    kept = json.loads((calibrated / f"{weights}.json").read_text())["kept"]
    # floor(7 / 2) = 3 of each of 3 layers go.
    assert sum(map(len, kept.values())) == 21 - 9
    works("export", "model", "--plan", f"{weights}.json", f"out-{weights}")


def test_a_budget_of_given_paths_is_the_criterion_under_a_global_schedule(works, calibrated):
    """The natural plan's projection, three ways: M found, M given, and as a criterion."""
    common = ("--sparsity", "50%", "--stats-dir", "stats")
    said = works("paths", "model", *common, "-o", "solved.json")
    solved = json.loads((calibrated / "solved.json").read_text())
    count = solved["schedule_parameters"]["paths"]
    assert f"first {count} path" in said
    works("paths", "model", *common, "--top-m", str(count), "-o", "given.json")
    criterion = ("--criterion", f"pathfinder:{count}", "--schedule", "global")
    works("plan", "model", *common, *criterion, "-o", "criterion.json")
    given, planned = (
        json.loads((calibrated / name).read_text()) for name in ("given.json", "criterion.json")
    )
    assert given["kept"] == planned["kept"] == solved["kept"]
    assert planned["criterion"] == f"pathfinder:{count}"
    works("score", "model", "--criterion", "pathfinder:3", "--stats-dir", "stats", "-o", "s.csv")
    # The table is CSV whatever its name.
    works("paths", "model", "--top-m", "3", "--table", "t.parquet", "--stats-dir", "stats")
    scores, table = pd.read_csv(calibrated / "s.csv"), pd.read_csv(calibrated / "t.parquet")
    assert scores["score"].tolist() == table["num_samples"].tolist()


def test_a_share_of_the_bytes_is_a_budget_of_paths(works, calibrated):
    works("paths", "model", "--shrink", "20%", "--schedule", "uniform", "--stats-dir", "stats")
    plan, model = load_plan(calibrated / "plan.json"), load_model_index("model")
    report = size_report(model, plan)
    (count,) = {len(ids) for ids in plan.kept.values()}
    more = {layer.index: tuple(range(count + 1)) for layer in model.layers}
    larger = size_report(model, PruningPlan(model_ref(model), more))
    assert report.bytes_after <= 0.8 * report.bytes_before < larger.bytes_after


def test_measured_transitions_and_representatives_are_in_the_plan(works, calibrated):
    works(
        *("paths", "model", "--top-m", "2", "--stats-dir", "stats"),
        *("--transitions", "measured", "--clusters", "2", "--path-weights", "transition"),
    )
    plan = json.loads((calibrated / "plan.json").read_text())
    assert plan["schedule_parameters"] == {
        "paths": 2,
        "weights": "transition",
        "transitions": "measured",
        "clusters": 2,
    }


def test_no_more_paths_are_said_than_there_are(works, moeprune, calibrated):
    # Three layers of 7 experts: 7 * 7 * 7 paths.
    said = works("paths", "model", "--top-m", "9999", "--stats-dir", "stats")
    assert "21 experts lie on all 343 paths of 3 samples" in said
    ended = moeprune("paths", "model", "--top-m", "99999999", "--stats-dir", "stats")
    assert ended.code == 1
    assert "99,999,999 paths per sample cannot be followed; use 1 to 16,384" in ended.err


def test_recipes_collect_what_the_criterion_reads():
    recipe = Recipe.model_validate(
        {
            "model": "demo",
            "corpora": ["demo-math"],
            "criterion": "pathfinder:20",
            "budget": {"sparsity": "50%"},
            "calibrate": {"answers": "own", "answer_tokens": 12, "packing": "pad"},
        }
    )
    (request,) = calibrate_requests(recipe, Machine())
    assert request.groups == ("dense",)
    assert (request.answers, request.most_answer_tokens) == ("own", 12)
    assert "--answers own --answer-tokens 12" in request.command()
