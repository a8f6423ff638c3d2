"""runs and jobs: what is listed, shown, merged, verified and removed."""

import io
import json
import re
import shutil
from pathlib import Path

import pandas as pd
import pytest

from analysis.files.shipped import SHIPPED_STATS
from analysis.model.opening import load_model_index
from app.jobs.store import JobStore
from builders import edit_json
from builders.traffic import write_traces
from pruning.plan.plan_file import load_plan


@pytest.fixture
def own_stats(stats, here):
    """A copy of the statistics, to change."""
    return shutil.copytree(stats, here / "own")


def test_list_shows_own_and_shipped_runs(works, stats, run_ids, monkeypatch):
    said = works("runs", "list", "--stats-dir", stats)
    monkeypatch.setenv("MOEPRUNE_STATS_DIR", str(stats))  # which servers read too
    assert works("runs", "list") == said
    shipped = [path.name for path in SHIPPED_STATS.glob("demo-*") if path.is_dir()]
    assert shipped
    for name in (*run_ids.values(), *shipped):
        assert name in said


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *(("settings", value) for value in ({}, [], 1, {"dtype": 1})),
        ("settings", {"dtype": "float32", "seq_len": "9", "seed": 0}),
        *(("made", value) for value in (None, [["seconds", 1]])),
        *(("files", value) for value in ({"experts.parquet": 3}, [["a", "b"]])),
        *(("groups", value) for value in ([1], [["routed"]])),
        *((key, 7) for key in ("run_id", "digest", "model", "corpora")),
        ("model", {"name": ["x"], "identity": "", "model_type": "", "layers": [[0, 4, 2]]}),
    ],
)
def test_a_manifest_with_a_wrong_field_is_named_and_costs_no_other_run(
    works, moeprune, own_stats, run_ids, tiny, corpora, key, value
):
    good, bad = run_ids["tiny", "red"], "tiny-red-bad"
    shutil.copytree(own_stats / good, own_stats / bad)
    edit_json(own_stats / bad / "manifest.json", **{"run_id": bad, key: value})
    ranked = ("--criterion", "reap", "--calibrated-on", corpora[0], "--sparsity", "50%")
    works("plan", tiny, *ranked, "--stats-dir", own_stats)
    listed = moeprune("runs", "list", "--stats-dir", own_stats)
    assert listed.code == 0
    assert listed.err.startswith("left out: ")
    assert bad in listed.err
    assert bad not in listed.out
    assert good in listed.out


def test_show_prints_the_manifest_of_a_run_named_by_its_beginning(works, stats, run_ids):
    raw = json.loads(works("runs", "show", "tiny-red", "--stats-dir", stats))
    assert raw["run_id"] == run_ids["tiny", "red"]
    assert raw["corpora"][0]["num_tokens"] == 48
    assert raw == json.loads((stats / raw["run_id"] / "manifest.json").read_text())


def test_merge_adds_the_sums(works, own_stats, run_ids):
    names = [run_ids["tiny", "red"], run_ids["tiny", "blue"]]
    said = works("runs", "merge", *names, "--stats-dir", own_stats)
    merged = Path(said.splitlines()[1])
    assert said.startswith(f"{merged.name}: 96 tokens\n")
    first, second, both = (
        pd.read_parquet(own_stats / name / "experts.parquet") for name in (*names, merged.name)
    )
    for column in ("num_tokens", "applied_g1_f1", "g0_f2"):
        pd.testing.assert_series_equal(both[column], first[column] + second[column])


def test_import_makes_a_run_of_traffic_that_frequency_alone_ranks_by(
    works, moeprune, own_stats, tiny, here
):
    write_traces(here / "monday.jsonl", load_model_index(str(tiny)).layers)
    place = ("--stats-dir", own_stats)
    words = ("runs", "import", here / "monday.jsonl", "--model", tiny, *place)
    outcome = moeprune(*words, "--json")
    result = json.loads(outcome.out)["result"]
    assert result["tokens"] == 3 * 23
    assert "traffic of 2026-10-26, 3 requests, 69 tokens counted, from vLLM" in works(*words)
    manifest = json.loads(works("runs", "show", result["run"], *place, "--json"))["result"]
    assert manifest["kind"] == "traffic"
    assert "served" in works("runs", "list", *place)
    works("runs", "verify", result["run"], *place)
    ranked = ("--calibrated-on", "monday", "--sparsity", "50%", *place)
    works("plan", tiny, "--criterion", "frequency", *ranked)
    made = load_plan(here / "plan.json")
    counts = pd.read_parquet(Path(result["path"]) / "experts.parquet")
    for layer, rows in counts.groupby("layer"):
        order = rows.sort_values(["num_tokens", "expert"], ascending=[False, True])
        assert set(made.kept[layer]) == set(order["expert"].iloc[:3])
    refused = moeprune("plan", tiny, "--criterion", "reap", *ranked, "-o", "other.json")
    assert refused.err == (
        "error: monday is traffic, of which a run has counts of tokens alone; REAP reads more. "
        "Rank by frequency (--criterion frequency), or calibrate on text like it.\n"
    )
    for criterion, corpora in (("frequency", 3), ("reap", 2)):
        shared = ("--criterion", criterion, "--sparsity", "50%", "-o", f"{criterion}.csv", *place)
        works("overlap", tiny, *shared)
        assert len(pd.read_csv(here / f"{criterion}.csv")) == corpora * (corpora - 1) / 2


def test_verify_notices_a_changed_file(moeprune, works, own_stats, run_ids):
    run = run_ids["tiny", "red"]
    assert f"{run}: 3 files intact\n" in works("runs", "verify", run, "--stats-dir", own_stats)
    with (own_stats / run / "vectors.parquet").open("r+b") as file:
        file.seek(-1, 2)
        file.write(b"!")
    outcome = moeprune("runs", "verify", run, "--stats-dir", own_stats)
    assert outcome.code == 1
    assert outcome.err == f"error: {run}: vectors.parquet has changed since it was written.\n"


def test_remove_deletes_the_run_and_no_other(works, own_stats, run_ids):
    run = run_ids["tiny", "red"]
    assert works("runs", "remove", run, "--yes", "--stats-dir", own_stats) == f"removed {run}\n"
    left = {path.parent.name for path in own_stats.glob("*/manifest.json")}
    assert left == set(run_ids.values()) - {run}
    assert not (own_stats / run).exists()


def test_remove_asks_first(moeprune, own_stats, run_ids, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO("n\n"))
    run = run_ids["tiny", "red"]
    assert moeprune("runs", "remove", run, "--stats-dir", own_stats).code == 1
    assert (own_stats / run).is_dir()


@pytest.fixture
def store(here, tmp_path):
    return JobStore(tmp_path / "state" / "jobs.sqlite")


@pytest.fixture
def job(store):
    """A job that has ended, with a log."""
    job = store.submit("export", {"out": "half"}, "half", "moeprune export x half", "ann")
    store.cancel(job.id)
    job.log_path.write_text("".join(f"line {n}\n" for n in range(60)))
    return job


def test_list_shows_kind_state_and_title(works, job):
    row = next(line for line in works("jobs", "list").splitlines() if job.id in line)
    assert [cell.strip() for cell in row.split("│")] == [job.id, "export", "canceled", "0%", "half"]


def test_list_is_as_long_as_was_asked_for_and_says_what_is_left_out(moeprune, store):
    ids = [store.submit("export", {}, "x", "moeprune export", "ann").id for _ in range(3)]
    shown = moeprune("jobs", "list", "--limit", 2)
    assert [job_id in shown.out for job_id in ids] == [False, True, True]
    assert shown.err == "2 of 3 jobs; --limit 3 shows all\n"
    assert moeprune("jobs", "list").err == ""


def test_show_is_json_and_takes_the_beginning_of_an_id(works, job):
    raw = json.loads(works("jobs", "show", job.id[:6]))
    assert raw["id"] == job.id
    assert raw["request"] == {"out": "half"}


def test_logs_prints_the_end(works, job):
    assert works("jobs", "logs", job.id, "--lines", 2) == "line 58\nline 59\n"


def test_cancel_of_an_ended_job_is_refused(moeprune, job):
    outcome = moeprune("jobs", "cancel", job.id)
    assert outcome.code == 1
    assert "canceled already" in outcome.err


def test_looking_at_the_queue_starts_nothing(works, store):
    job = store.submit("export", {"out": "half"}, "half", "moeprune export x half", "ann")
    for words in (("list",), ("show", job.id), ("logs", job.id)):
        works("jobs", *words)
    assert store.get(job.id).state == "queued"
    works("jobs", "cancel", job.id)
    assert store.get(job.id).state == "canceled"


def test_list_says_what_each_run_cost(works, stats):
    (manifest,) = SHIPPED_STATS.glob("demo-demo-math-*/manifest.json")
    made = json.loads(manifest.read_text())["made"]
    listed = works("runs", "list", "--stats-dir", stats).splitlines()
    cells = [[cell.strip() for cell in re.split("[│┃|]", line)] for line in listed]
    costs = ["statistics", "shape", "tokens", "seconds", "tokens/s", "peak MiB"]
    assert cells[0][1:] == [*costs, "groups besides routed", "answers", "source"]
    (row,) = (row for row in cells if row[0].startswith("demo-demo-math"))
    assert row[1:4] == ["demo-math", "6 x 32", "65,536"]
    assert float(row[4]) == pytest.approx(made["seconds"], rel=1e-3)
    assert row[6] == f"{round(made['peak_memory_bytes'] / 2**20):,}"
    assert row[7:] == ["router, damage, gradient, dense", "given", "shipped"]
    (weights,) = (row for row in cells if row[0].startswith("demo-weights"))
    assert weights[7:] == ["-", "-", "shipped"]
    assert {row[9] for row in cells if row[0].startswith("tiny-")} == {"own"}
