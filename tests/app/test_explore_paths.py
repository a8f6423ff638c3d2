"""Explore, paths: the numbers of `moeprune paths`, choices in the address, what is missing."""

import shlex

import pandas as pd
import pytest
from page_texts import opened, texts
from typer.testing import CliRunner

import app.cli
from analysis.criteria.trajectory import Weighing, follow_paths, representative_samples
from analysis.files.shipped import SHIPPED_STATS
from analysis.stats.grid import Grid
from analysis.stats.reading import load_sample_stats
from analysis.stats.store import StatsStore

PATHS = {"tab": "Expert", "expert.view": "Paths"}

CORPORA = ("demo-code", "demo-math", "demo-stories")


@pytest.fixture(scope="module")
def samples():
    """The shipped statistics of samples of each text, and the layers of the demo."""
    store = StatsStore(SHIPPED_STATS)
    runs = {run.manifest.corpus: run for run in store.runs() if run.manifest.kind == "routed"}
    return {corpus: load_sample_stats(runs[corpus]) for corpus in CORPORA}


def test_the_table_is_that_of_the_followed_paths(open_page, samples):
    table = numbers(open_page("explore", **PATHS), "paths")
    assert list(dict.fromkeys(table["corpus"])) == list(CORPORA)
    for corpus, stats in samples.items():
        wanted = follow_paths(stats, 100).table(100)
        wanted["rank"] += 1  # people count from 1
        rows = table[table["corpus"] == corpus].reset_index(drop=True)
        pd.testing.assert_frame_equal(rows[list(wanted)], wanted)
        assert rows["samples"].unique().tolist() == [256]


def test_choices_in_the_address_are_those_of_the_command(open_page, samples, tmp_path):
    chosen = {"m": "7", "k": "4", "transitions": "As measured"}
    test = open_page("explore", **PATHS, corpora="demo-math", **chosen)
    table = numbers(test, "paths")
    wanted = follow_paths(
        representative_samples(samples["demo-math"], 4), 7, Weighing(steps="measured")
    )
    rows = table[table["corpus"] == "demo-math"]
    assert rows["num_samples"].tolist() == wanted.table(7)["num_samples"].tolist()
    (line,) = [line.value for line in test.code if "moeprune paths" in line.value]
    (drawn,) = [line.value for line in test.code if "moeprune plot paths" in line.value]
    assert "--top-m 7 --transitions measured --clusters 4" in drawn
    words = "--calibrated-on demo-math --top-m 7 --transitions measured --clusters 4"
    assert line.startswith(f"moeprune paths demo {words} --stats-dir ")
    # The command says the same numbers.
    given = [*shlex.split(line)[1:-1], str(tmp_path / "paths.csv")]
    ended = CliRunner().invoke(app.cli.cli, [*given, "-o", str(tmp_path / "plan.json")])
    assert ended.exit_code == 0, ended.output
    written = pd.read_csv(tmp_path / "paths.csv")
    assert written["num_samples"].tolist() == rows["num_samples"].tolist()


def test_numbers_out_of_range_fall_back(open_page):
    test = open_page("explore", **PATHS, m="100000", k="-3")
    assert test.number_input(key="m").value == 100
    assert test.number_input(key="k").value == 0
    assert not test.exception


def test_what_would_take_minutes_is_refused(open_page):
    """256 samples x 5 squares of 32 x m 206 are more than 2^28 steps."""
    test = open_page("explore", **PATHS, m="206", transitions="As measured")
    assert "K = 10" in test.warning[0].value
    # Without importance's partner there are no steps, so nothing takes long.
    test.segmented_control(key="path-weights").set_value("importance").run()
    assert not test.warning


def test_the_criterion_ranks_as_the_paths_do(open_page, samples):
    test = open_page("explore", criterion="pathfinder", corpora="demo-stories")
    table = numbers(test, "stratification")
    rows = table[table["panel"] == "MoE Pathfinder"].sort_values(["layer", "rank"])
    order = follow_paths(samples["demo-stories"], 100).table(100).sort_values(["layer", "rank"])
    assert rows["expert"].tolist() == order["expert"].tolist()
    assert Grid(samples["demo-stories"].grid.layers).counts.sum() == len(rows)


def test_a_model_without_samples_says_what_to_collect(open_page):
    test = open_page("explore", "once", **PATHS)
    assert any("samples" in text for text in texts(test.info))
    assert any("--group dense" in line.value for line in test.code)
    test = open_page("explore", "once", criterion="pathfinder")
    assert "--group dense" in test.info[0].value
    assert not test.exception


def numbers(test, chart):
    return opened(test, chart).dataframe[-1].value
