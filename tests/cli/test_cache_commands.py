"""runs: list, show, merge, verify, remove."""

import io
import json
import shutil
from pathlib import Path

import pandas as pd
import pytest

from analysis.stats.store import SHIPPED_STATS


@pytest.fixture
def own_stats(stats, here):
    """A copy of the statistics, to change."""
    return shutil.copytree(stats, here / "own")


def test_list_shows_own_and_shipped_runs(works, stats, run_ids):
    said = works("runs", "list", "--stats-dir", stats)
    shipped = [path.name for path in SHIPPED_STATS.glob("demo-*") if path.is_dir()]
    assert shipped
    for name in (*run_ids.values(), *shipped):
        assert name in said


def test_list_names_a_run_that_cannot_be_read(moeprune, own_stats, run_ids):
    (own_stats / run_ids["tiny", "red"] / "manifest.json").write_text("{")
    outcome = moeprune("runs", "list", "--stats-dir", own_stats)
    assert outcome.code == 0
    assert outcome.err.startswith("left out: ")
    assert run_ids["tiny", "red"] in outcome.err
    assert run_ids["tiny", "red"] not in outcome.out
    assert run_ids["tiny", "blue"] in outcome.out


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


def test_verify_notices_a_changed_file(moeprune, works, own_stats, run_ids):
    run = run_ids["tiny", "red"]
    assert works("runs", "verify", run, "--stats-dir", own_stats) == f"{run}: 3 files intact\n"
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
