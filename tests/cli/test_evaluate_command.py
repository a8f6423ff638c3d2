"""evaluate and sweep: one result for each plan and corpus, kept and not measured again."""

import json
import re
import shlex
import shutil

import pandas as pd
import pytest

from analysis.corpora.spec import corpus_name
from pruning.records.evaluation import TABLE_COLUMNS, EvaluationStore


@pytest.fixture
def plan(works, tiny, corpora, stats, here):
    works(
        *("plan", tiny, "--criterion", "reap", "--calibrated-on", corpora[0], "--sparsity", "50%"),
        *("--stats-dir", stats, "-o", "plan.json"),
    )
    return here / "plan.json"


@pytest.mark.parametrize("way", [(), ("--stream-layers",)])
def test_what_it_would_take_is_said_before_anything_runs(works, tiny, corpora, plan, here, way):
    words = ("evaluate", tiny, "--plan", plan, "--corpus", corpora[1], "--samples", "4")
    words += ("--seq-len", "9", "--stats-dir", here / "own", *way)
    said = json.loads(works(*words, "--dry-run", "--json"))
    weights = sum(file.stat().st_size for file in tiny.glob("*.safetensors"))
    # By layers, what lies outside of them is not counted.
    assert 0.5 * weights < said["result"]["bytes"] <= weights
    assert said["result"]["seconds"] > 0
    assert not (here / "own").exists()
    assert not (here / "result.json").exists()
    (following,) = said["next"]
    works(*shlex.split(following)[1:])
    assert "known already; nothing was run" in works(*words, "--dry-run", "--force")


def test_it_writes_one_result_and_keeps_it(works, tiny, corpora, plan, here):
    words = ("evaluate", tiny, "--plan", plan, "--corpus", corpora[1], "--samples", "4")
    words += (
        "--seq-len",
        "9",
        "--stats-dir",
        here / "own",
        "--measure",
        "esap",
        "--measure",
        "nll",
    )
    printed = works(*words)
    result = json.loads((here / "result.json").read_text())
    assert set(result["metrics"]) == {"esap", "nll"}
    assert set(result["metrics"]["esap"]) == {"mean", "pooled", "low", "high"}
    assert result["schema_version"] == 1
    assert (result["num_samples"], result["corpus"]["name"]) == (4, corpus_name(str(corpora[1])))
    assert result["plan"]["criterion"] == "reap"
    assert f"{result['metrics']['esap']['mean']:.4f}" in printed
    increase = result["metrics"]["nll"]["mean"] - result["full"]["nll"]["mean"]
    assert f"{increase:+.4f}" in printed
    name = result["corpus"]["name"]
    assert f"result.json: 1 evaluation, loss {increase:+.2f} ({name})" in printed
    assert "no known calibration used this corpus" in printed
    (kept,) = (here / "own").rglob("evaluations/*")
    (record,) = EvaluationStore([here / "own"]).records()
    assert json.loads(json.dumps(record.to_dict())) == result
    assert json.loads(kept.read_text())["measures"] == list(result["metrics"])
    before = kept.stat().st_mtime_ns
    works(*words, "--force")
    assert kept.stat().st_mtime_ns == before


def test_several_plans_and_corpora_stand_in_one_file(works, tiny, corpora, plan, stats, here):
    other = here / "other.json"
    works("plan", tiny, "--criterion", "random", "--sparsity", "50%", "-o", other)
    printed = works(
        *("evaluate", tiny, "--plan", plan, "--plan", other, "--seq-len", "9"),
        *("--corpus", corpora[0], "--corpus", corpora[1], "-o", "all.json"),
        *("--stats-dir", here / "own"),
    )
    results = json.loads((here / "all.json").read_text())["evaluations"]
    assert [result["corpus"]["name"] for result in results] == [
        corpus_name(str(corpus)) for corpus in corpora for _ in range(2)
    ]
    # A table for each corpus, below its name, in which the plans stand side by side.
    assert re.findall(r"^(\S+)\nplan ", printed, re.MULTILINE) == [
        corpus_name(str(corpus)) for corpus in corpora
    ]


def test_alike_names_are_told_apart_and_a_corpus_counts_once(works, tiny, corpora, plan, here):
    (here / "other").mkdir()
    other = here / "other" / "plan.json"
    works("plan", tiny, "--criterion", "random", "--sparsity", "50%", "-o", other)
    words = ("--samples", "4", "--stats-dir", here / "own")
    printed = works(
        *("evaluate", tiny, "--plan", other, "--plan", plan, *words),
        *("--corpus", corpora[1], "--corpus", corpora[1]),
    )
    found = json.loads((here / "result.json").read_text())["evaluations"]
    assert len(found) == 2
    best = min(
        zip(found, (other, plan), strict=True), key=lambda pair: pair[0]["metrics"]["nll"]["mean"]
    )
    assert f"least by {best[1]}: loss" in printed
    assert re.search(rf"^next: .* --plan {re.escape(str(best[1]))}$", printed, re.MULTILINE)


@pytest.mark.parametrize("way", [(), ("--stream-layers",)], ids=["whole", "streamed"])
def test_float64_agrees_with_float32(works, tiny, corpora, plan, here, way):
    words = ("evaluate", tiny, "--plan", plan, "--corpus", corpora[1], "--seq-len", "9", *way)
    words += ("--measure", "nll", "--measure", "kl", "--stats-dir", here / "own")
    for dtype in ("float32", "float64"):
        works(*words, "--dtype", dtype, "-o", f"{dtype}.json")
    single, double = (
        json.loads((here / f"{dtype}.json").read_text()) for dtype in ("float32", "float64")
    )
    for measure in ("nll", "kl"):
        means = [result["metrics"][measure]["mean"] for result in (single, double)]
        assert means[0] == pytest.approx(means[1], abs=1e-5)
        assert means[0] != means[1]  # it was computed in another dtype
    assert single["full"]["nll"]["mean"] == pytest.approx(double["full"]["nll"]["mean"], abs=1e-5)


@pytest.mark.parametrize(
    "command",
    [
        "sweep MODEL --criterion aimer --sparsity 50% --corpus CORPUS --measure esap",
        "variance MODEL --plan PLAN --corpus CORPUS",
        "sensitivity MODEL --criterion aimer --corpus CORPUS --samples 2",
        "bins MODEL --criterion aimer --corpus CORPUS --samples 2",
        "calibrate MODEL --corpus CORPUS --group gradient",
        "repair MODEL --plan PLAN --corpus CORPUS",
    ],
)
def test_every_command_computes_in_float64(works, tiny, corpora, plan, here, command):
    places = {"MODEL": tiny, "PLAN": plan, "CORPUS": corpora[1]}
    words = [places.get(word, word) for word in command.split()]
    works(*words, "--seq-len", "9", "--dtype", "float64", "--stats-dir", here / "own")
    written = "".join(path.read_text() for path in (here / "own").rglob("*.json"))
    assert set(re.findall(r'"dtype":\s*"(\w+)"', written)) - {"F32"} == {"float64"}  # of weights


def test_documents_that_calibration_read_are_not_evaluated_on(works, tiny, corpora, stats):
    printed = works("evaluate", tiny, "--corpus", corpora[0], "--stats-dir", stats)
    # The small corpus was read whole.
    assert "calibration may have read some of these documents" in printed


@pytest.fixture
def words(tiny, corpora, stats):
    return (
        *("sweep", tiny, "--criterion", "reap", "--criterion", "aimer"),
        *("--sparsity", "50%", "--sparsity", "17%", "--calibrated-on", corpora[0]),
        *("--corpus", corpora[1], "--seq-len", "9", "--measure", "esap", "--measure", "nll"),
        *("--stats-dir", stats),
    )


def test_every_criterion_at_every_sparsity_and_the_unpruned_model(works, words, corpora, here):
    printed = works(*words, "--figure", "fig.html")
    table = pd.read_csv(here / "sweep.csv", keep_default_na=False)
    assert tuple(table.columns) == TABLE_COLUMNS
    esap = table[table["measure"] == "esap"]
    assert list(zip(esap["criterion"], esap["sparsity"], strict=True)) == [
        ("", ""),
        *(("reap", sparsity) for sparsity in ("17%", "50%")),
        *(("aimer", sparsity) for sparsity in ("17%", "50%")),
    ]
    # 3 layers of 6 experts: 17% removes one of each, 50% three.
    assert esap["removed"].tolist() == pytest.approx([0, 1 / 6, 1 / 2, 1 / 6, 1 / 2])
    assert esap["mean"].tolist()[0] == 1
    assert (esap["mean"][1:] < 1).all()
    whole = esap["active_params"].iloc[0]
    # A token still uses two experts a layer; the router loses a row of 16 for each that goes.
    rows = [0, 3, 9, 3, 9]
    assert esap["active_params"].tolist() == [whole - 16 * gone for gone in rows]
    # An expert has three matrices of 16 x 24; everything is float32.
    per_expert = 4 * (3 * 16 * 24 + 16)
    sizes = [int(esap["bytes"].iloc[0]) - per_expert * gone for gone in rows]
    assert esap["bytes"].tolist() == sizes
    red = corpus_name(str(corpora[0]))
    assert esap["calibrated_on"].tolist() == ["", red, red, "", ""]
    assert "original" in printed
    assert "Loss increase over" not in printed  # one corpus has no mean over corpora
    assert (here / "fig.html").stat().st_size > 1000


def test_a_sweep_prints_what_each_plan_adds_to_the_loss_and_the_mean_over_corpora(
    works, words, corpora, here
):
    printed = works(*words, "--corpus", corpora[0])
    table = pd.read_csv(here / "sweep.csv", keep_default_na=False)
    losses = table[table["measure"] == "nll"].astype({"mean": float, "full": float})
    losses["increase"] = losses["mean"] - losses["full"]
    pruned = losses[losses["removed"] > 0]
    *by_corpus, means = re.split(r"^.*loss increase.*$", printed, flags=re.M | re.I)[1:]
    for corpus, rows in pruned.groupby("corpus", sort=False):
        shown = by_corpus[list(losses["corpus"].unique()).index(corpus)]
        assert re.findall(r"([+-]\d\.\d{4}) *$", shown, re.MULTILINE) == [
            f"{increase:+.4f}" for increase in rows["increase"]
        ]
        assert re.search(r"^original .* - *$", shown, re.MULTILINE)
    grouped = pruned.groupby(["removed", "criterion"])["increase"]
    mean = grouped.agg(["mean", "max"]).reset_index().sort_values(["removed", "mean"])
    assert re.findall(r"^(\w+) .*([+-]\d\.\d{4}) .*([+-]\d\.\d{4}) ", means, re.MULTILINE) == [
        (row["criterion"], f"{row['mean']:+.4f}", f"{row['max']:+.4f}")
        for row in mean.to_dict("records")
    ]
    assert "original" not in means


def test_a_share_of_the_bytes_is_a_budget_of_a_sweep(works, tiny, corpora, here):
    works(
        *("sweep", tiny, "--criterion", "random", "--shrink", "30%", "--shrink", "20%"),
        *("--corpus", corpora[1], "--seq-len", "9", "--measure", "esap", "--stats-dir", here),
    )
    table = pd.read_csv(here / "sweep.csv", keep_default_na=False)
    # An expert is 4,672 of 111,040 bytes: two, then three of each layer.
    assert table["removed"].tolist() == pytest.approx([0, 1 / 3, 1 / 2])


def test_a_sweep_in_one_pass_through_the_layers_gives_the_same_table(works, words, here, stats):
    works(*words, "-o", "whole.csv")
    shutil.rmtree(stats / "models")
    works(*words, "--stream-layers", "-o", "streamed.csv")
    whole, streamed = (pd.read_csv(here / f"{name}.csv") for name in ("whole", "streamed"))
    assert set(streamed["created_at"]).isdisjoint(whole["created_at"])  # measured again
    made = ["created_at", "seconds"]
    pd.testing.assert_frame_equal(
        streamed.drop(columns=made, errors="ignore"), whole.drop(columns=made, errors="ignore")
    )


def test_what_is_finished_is_kept_and_parquet_has_the_same(works, words, here, stats):
    works(*words)
    files = {path: path.stat().st_mtime_ns for path in stats.rglob("evaluations/*")}
    works(*words, "-o", "sweep.parquet")
    again = {path: path.stat().st_mtime_ns for path in stats.rglob("evaluations/*")}
    assert files == again
    whole = pd.read_parquet(here / "sweep.parquet")
    text = pd.read_csv(here / "sweep.csv", keep_default_na=False)
    assert whole["mean"].tolist() == pytest.approx(text["mean"].tolist())


def test_neurons_are_swept_too_and_save_flops(works, tiny, corpora, here):
    works(
        *("sweep", tiny, "--criterion", "neuron-norms", "--granularity", "neuron"),
        *("--sparsity", "25%", "--corpus", corpora[1], "--seq-len", "9", "--stats-dir", here),
    )
    table = pd.read_csv(here / "sweep.csv", keep_default_na=False)
    whole, cut = table[table["measure"] == "esap"].to_dict("records")
    assert (whole["granularity"], cut["granularity"]) == ("expert", "neuron")
    # 24 neurons an expert, of which 6 go: a quarter of the FLOPs and of the weights.
    assert cut["expert_flops"] == pytest.approx(0.75 * whole["expert_flops"])
    assert cut["removed"] == pytest.approx(0.25)
    assert cut["mean"] < 1
