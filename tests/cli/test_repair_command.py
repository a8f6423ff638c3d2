"""repair, and the commands that compare plans with themselves repaired."""

import json
import re
import shutil

import pandas as pd
import pytest

from analysis.model.opening import load_model_index
from pruning.plan.plan_file import load_plan
from pruning.records.evaluation import EvaluationStore
from pruning.records.quality import LOSS
from pruning.records.repair import RepairStore


@pytest.fixture
def plan(works, tiny, corpora, stats, here):
    words = ("--calibrated-on", corpora[0], "--sparsity", "50%", "--stats-dir", stats)
    works("plan", tiny, "--criterion", "reap", *words, "-o", "plan.json")
    return here / "plan.json"


@pytest.fixture
def text(corpora, stats):
    blend = [word for corpus in corpora for word in ("--corpus", corpus)]
    return (*blend, "--tokens", "64", "--seq-len", "8", "--stats-dir", stats)


def test_a_repair_writes_a_plan_that_names_it(
    works, moeprune, tiny, corpora, plan, text, stats, here
):
    said = works("repair", tiny, "--plan", plan, *text, "--dry-run")
    assert "nothing was written" in said
    assert not (here / "repaired.json").exists()
    said = works("repair", tiny, "--plan", plan, *text)
    assert "moeprune evaluate" in said
    model = load_model_index(str(tiny))
    made, (record,) = load_plan(here / "repaired.json", model=model), RepairStore([stats]).records()
    assert made.repair == record.reference
    assert made.unrepaired == load_plan(plan, model=model)
    assert record.plan_digest == made.unrepaired.digest
    assert len(record.corpora) == 2
    again = moeprune("repair", tiny, "--plan", here / "repaired.json", *text, "-o", "again.json")
    assert (
        again.err == "error: The plan is repaired already; give the plan that the repair was "
        "made of.\n"
    )
    # Another plan under that name is replaced if told to.
    words = ("repair", tiny, "--plan", plan, *text, "--tokens", "48")
    refused = moeprune(*words)
    assert "repaired.json is there already" in refused.err
    works(*words, "--force")
    other = load_plan(here / "repaired.json", model=model)
    assert other.repair not in (None, made.repair)
    assert other.unrepaired == made.unrepaired
    # Every command that takes plans takes this one.
    words = ("--plan", plan, "--plan", here / "repaired.json", "--stats-dir", stats)
    where = ("--corpus", corpora[1], "--samples", "3", "--seq-len", "8")
    assert "repaired.json" in works("evaluate", tiny, *words, *where)
    said = works("export", tiny, "out", "--plan", here / "repaired.json", "--stats-dir", stats)
    assert "Repair: fitted on" in said
    # Its card says what it costs, as measured.
    (record,) = (
        record
        for record in EvaluationStore([stats]).records(model.identity)
        if record.plan_digest == other.digest
    )
    change = record.metrics[LOSS].mean - record.full[LOSS].mean
    card = (here / "out" / "README.md").read_text()
    assert f" | {record.full[LOSS].mean:.2f} | {change:+.2f} | " in card
    assert f"verify out --source {tiny} --stats-dir {stats}" in " ".join(said.split())
    said = works("plans", "show", here / "repaired.json", "--model", tiny)
    assert "repair" in said


def test_the_text_that_ranked_is_read_where_it_was_read_and_asked_for_if_it_is_not_there(
    moeprune, works, tiny, corpora, plan, stats, here
):
    words = ("repair", tiny, "--plan", plan, "--stats-dir", stats, "--tokens", 64, "--seq-len", 8)
    outcome = moeprune(*words)
    folder = corpora[0].parent.name  # a record says no more of where a file lies
    assert "The plan was ranked by red.jsonl@" in outcome.err
    assert f"and no file {folder}/red.jsonl with its text is here" in outcome.err
    assert outcome.err.count("\n") == 1
    (here / folder).mkdir()
    shutil.copy(corpora[1], here / folder / "red.jsonl")  # another text under that name
    assert moeprune(*words).err == outcome.err
    shutil.copy(corpora[0], here / folder)
    assert "nothing was written" in works(*words, "--dry-run")


def test_sweeps_compare_each_plan_with_itself_repaired(works, tiny, corpora, stats, here):
    words = ("--criterion", "reap", "--criterion", "random", "--sparsity", "50%", "--repair")
    where = ("--corpus", corpora[1], "--samples", "3", "--stats-dir", stats)
    blend = [word for corpus in corpora for word in ("--calibrated-on", corpus)]
    said = works("sweep", tiny, *words, *where, *blend, "--seq-len", "8")
    table = pd.read_csv(here / "sweep.csv")
    plans = table[table["removed"] > 0].drop_duplicates("plan")
    assert plans["criterion"].tolist() == ["reap", "reap", "random", "random"]
    assert plans["repaired_on"].notna().tolist() == [False, True, False, True]
    # The bytes are those of the plan: shapes stay.
    assert plans.groupby("criterion")["bytes"].nunique().tolist() == [1, 1]
    assert "+ repair" in said


def test_a_recipe_repairs_evaluates_both_and_exports_the_repaired(
    works, tiny, corpora, stats, here
):
    recipe = f"""
model: {tiny}
corpora: [{corpora[0]}]
tokens: 64
seq_len: 16
criterion: reap
sparsity: 50%
repair: {{corpora: ["{corpora[0]}", "{corpora[1]}"], tokens: 64, seq_len: 8}}
evaluate: {{corpus: {corpora[1]}, samples: 3, seq_len: 8}}
export: out
"""
    (here / "recipe.yaml").write_text(recipe)
    said = works("prune", "recipe.yaml", "--stats-dir", stats)
    assert "recipe.repaired.json" in said
    result = json.loads((here / "recipe.result.json").read_text())
    assert [bool(evaluation["plan"].get("repair")) for evaluation in result["evaluations"]] == [
        False,
        True,
    ]
    manifest = json.loads((here / "out" / "moeprune_manifest.json").read_text())
    assert manifest["plan"]["repair"]["tokens"] == 60
    assert works("verify", "out", "--source", tiny, "--stats-dir", stats).count("PASS") == 1
    again = works("prune", "recipe.yaml", "--stats-dir", stats)
    assert "recipe.repaired.json is the same, skipped" in again
    assert "is finished, skipped" in again


def test_evaluate_repairs_each_plan_that_is_not_repaired_yet(
    works, tiny, corpora, plan, text, stats, here
):
    works("repair", tiny, "--plan", plan, *text)
    shutil.copy(corpora[0], here)  # where the plan's name of its corpus finds it
    words = ("--criterion", "ean", "--calibrated-on", corpora[0], "--sparsity", "25%")
    works("plan", tiny, *words, "--stats-dir", stats, "-o", "ean.json")
    plans = [word for name in ("plan", "repaired", "ean") for word in ("--plan", f"{name}.json")]
    where = ("--corpus", corpora[1], "--samples", "3", "--seq-len", "8", "--stats-dir", stats)
    said = works("evaluate", tiny, *plans, *where, "--repair")
    shown = re.findall(r"\b(?:plan|repaired|ean)\.json(?: \+ repair on| \(repaired on)?", said)
    names = ["plan.json", "plan.json + repair on", "repaired.json (repaired on"]
    names += ["ean.json", "ean.json + repair on"]
    assert shown[:5] == names
    assert "repaired.json (repaired on 60 tokens)" in said
    evaluations = json.loads((here / "result.json").read_text())["evaluations"]
    repairs = [evaluation["plan"].get("repair", "") for evaluation in evaluations]
    assert [bool(repair) for repair in repairs] == [False, True, True, False, True]
    # The text named above is another one than the corpora that ranked.
    assert len(set(repairs)) == 4
    known = [
        record
        for record in EvaluationStore([stats]).records()
        if record.plan.repair in repairs[1:3]
    ]
    assert len(known) == 2
    removed = [evaluation["plan"]["removed"] for evaluation in evaluations]
    assert removed[0] == removed[1] == removed[2] > removed[3] == removed[4]
