"""`moeprune variance`, `bins` and `ask`: files, words, bad input."""

import re
import shutil
from pathlib import Path

import pandas as pd
import pytest

from pruning.records.bins import BIN_COLUMNS, Binning, BinsStore
from pruning.records.lens import LENS_COLUMNS, LensStore, in_short
from pruning.records.variances import VARIANCE_COLUMNS, VarianceStore

QUESTION = "A room is 7 m by 6 m. How large is it?"


def plan_of(works, model, stats, corpus, name="plan.json"):
    works(
        *("plan", model, "--criterion", "reap", "--calibrated-on", corpus, "--sparsity", "50%"),
        *("--stats-dir", stats, "-o", name),
    )
    return name


def test_variance_of_every_layer_full_and_pruned(works, tiny, corpora, stats, here):
    plan = plan_of(works, tiny, stats, corpora[0])
    (here / "other").mkdir()
    other = shutil.copy(plan, Path("other"))
    printed = works(
        *("variance", tiny, "--corpus", corpora[1], "--seq-len", "9", "--plan", plan),
        *("--plan", other, "--plan", plan, "--stats-dir", here),
    )
    assert "(original), " in printed
    table = pd.read_csv(here / "variance.csv")
    assert tuple(table.columns) == VARIANCE_COLUMNS
    # The model has four layers, one of them dense; two files of one name are told apart.
    assert table["model"].tolist() == [
        name for name in ("full", "plan.json", "other/plan.json") for _ in range(4)
    ]
    wide = table.pivot_table(index="layer", columns="model", values="variance")
    assert (wide["plan.json"] == wide["other/plan.json"]).all()
    assert (wide["plan.json"] != wide["full"]).all()  # layer 0 has experts already
    assert set(table["num_tokens"]) == {6 * 9 - 2 * 3}  # rows of 9, 8 and 7 tokens, twice


def test_variance_of_criteria_is_kept_and_not_measured_again(
    moeprune, works, tiny, corpora, stats, here
):
    words = (
        *("variance", tiny, "--corpus", corpora[1], "--seq-len", "9", "--stats-dir", stats),
        *("--criterion", "reap", "--criterion", "random", "--sparsity", "50%"),
        *("--calibrated-on", corpora[0]),
    )
    works(*words)
    table = pd.read_csv(here / "variance.csv")
    assert list(table["model"].unique()) == ["full", "reap 50%", "random 50%"]
    kept = VarianceStore([stats]).records()
    by_criterion = {record.plan.criterion: record for record in kept}
    for name, criterion in (("full", ""), ("reap 50%", "reap"), ("random 50%", "random")):
        own = table.loc[table["model"] == name, "variance"].tolist()
        assert own == pytest.approx(list(by_criterion[criterion].variances), rel=1e-12)
    again = moeprune(*words, "--force")
    assert (again.code, "all of it is measured already" in again.err) == (0, True)
    assert VarianceStore([stats]).records() == kept


def test_bins_of_experts_and_of_neurons(works, tiny, corpora, stats, here):
    text = ("--corpus", corpora[1], "--seq-len", "9", "--stats-dir", stats)
    words = ("--criterion", "reap", "--calibrated-on", corpora[0], "--bins", "3")
    printed = works("bins", tiny, *text, *words)
    table = pd.read_csv(here / "bins.csv")
    assert tuple(table.columns) == BIN_COLUMNS
    assert table["removed"].tolist() == [6, 6, 6]  # 3 layers of 6 experts
    assert table["saliency"].is_monotonic_increasing
    assert "rank correlation of saliency and loss" in printed
    neurons = ("--criterion", "neuron-norms", "--granularity", "neuron", "--bins", "4")
    works("bins", tiny, *text, *neurons, "-o", "neurons.parquet")
    table = pd.read_parquet(here / "neurons.parquet")
    assert table["removed"].tolist() == [3 * 6 * 24 // 4] * 4


def test_bins_are_kept_and_not_measured_again(works, tiny, corpora, stats, here, monkeypatch):
    words = (
        *("bins", tiny, "--corpus", corpora[1], "--seq-len", "9", "--stats-dir", here / "kept"),
        *("--criterion", "random", "--granularity", "neuron", "--bins", "3"),
    )
    works(*words)
    (record,) = BinsStore([here / "kept"]).records()
    assert record.ranked.how == Binning(3, "global")
    assert (record.ranked.corpora, record.ranked.runs) == ((), ())
    pd.testing.assert_frame_equal(record.table, pd.read_csv(here / "bins.csv"), rtol=1e-12)
    # Without weights nothing can be measured: what is asked again must come from the file.
    monkeypatch.setattr("pruning.actions.bins.loaded_model", None)
    works(*words, "-o", "again.csv")
    assert (here / "again.csv").read_bytes() == (here / "bins.csv").read_bytes()


def test_answers_stand_side_by_side(works, here):
    plan = plan_of(works, "demo", here, "demo-code")
    printed = works(
        *("ask", "demo", "--plan", plan, "--max-new-tokens", "24"),
        *("--prompt", QUESTION),
    )
    # The demo was trained on such problems; pruned for code it multiplies wrongly.
    original, pruned = (
        re.search(r"7 \* 6 = (\d+)", column)[1]
        for column in next(line for line in printed.splitlines() if "│" in line).split("│")
    )
    assert "original" in printed.splitlines()[0]
    assert original == "42" != pruned
    # Before the product there are six tokens, then one a digit: 7, " *", " ", 6, " =", " ".
    agreeing = 6 + (pruned[0] == "4")
    assert f"plan.json: the first {agreeing} of 10 tokens as the original model" in printed


def test_a_text_is_scored_once_and_drawn(works, moeprune, refused, here):
    plan = plan_of(works, "demo", here, "demo-code")
    words = ("ask", "demo", "--text", "7 * 6 = 42.", "--dtype", "float32", "--stats-dir", here)
    printed = works(*words, "--plan", plan)
    (record,) = (record for record in LensStore([here]).records())
    assert f"lens {record.record_id}: {len(record.ids) - 1} tokens scored" in printed
    assert f"plan.json: {in_short(record, record.plans[0])}" in printed
    again = moeprune(*words, "--plan", plan)
    assert (again.code, "scored under these plans already" in again.err) == (0, True)
    drawn = ("plot", "text-experts", "demo", "--plan", plan, "--stats-dir", here, "-o", "t.csv")
    works(*drawn, "--lens-id", record.record_id, "--token", "3")
    table = pd.read_csv(here / "t.csv")
    assert tuple(table.columns) == LENS_COLUMNS
    assert table["role"].value_counts()["wanted"] == 6 * 4  # layers, top-4
    assert "no token 99 to predict" in refused(
        *drawn, "--force", "--lens-id", record.record_id, "--token", "99"
    )
    assert "There is no lens 'x'" in refused(*drawn, "--force", "--lens-id", "x")
    assert "one of them" in refused("ask", "demo", "--text", "a b", "--prompt", "c")


def test_the_lens_of_an_answer_scores_the_answer_alone(works, here):
    plan = plan_of(works, "demo", here, "demo-code")
    words = ("--prompt", QUESTION, "--max-new-tokens", "8")
    works("ask", "demo", "--plan", plan, *words, "--lens", "--stats-dir", here)
    (record,) = LensStore([here]).records()
    assert len(record.losses) == 8
    assert "".join(record.tokens[record.scored_from :]) == "7 * 6 = 42"
    assert record.asked.fields["prompt"] == words[1]
