"""Explore, your traffic: what the page shows is what the command says of the same files."""

import json
import shlex
import sys

import pytest
from page_texts import opened, texts

from analysis.model.opening import load_model_index
from app.cli import main
from builders.traffic import write_traces

PART = {"tab": "Your traffic", "criterion": "ean", "corpora": "demo-code", "sparsity": "25%"}


@pytest.fixture
def stats_dir(tmp_path):
    return tmp_path / "stats"


@pytest.fixture
def layers():
    return load_model_index("demo").layers


@pytest.fixture
def told(run, capsys, monkeypatch):
    """What a command line of the page says as numbers."""
    del run  # whose folder this is as well

    def tell(line):
        monkeypatch.setattr(sys, "argv", [*shlex.split(line), "--json"])
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main()
        assert not ended.value.code
        return json.loads(capsys.readouterr().out)["result"]

    return tell


def lines_of(test, command):
    return [line for text in texts(test.code) for line in text.splitlines() if command in line]


def test_without_traffic_the_part_says_how_to_import_it_and_then_shows_it(
    open_page, run, layers, tmp_path
):
    test = open_page("explore", **PART)
    (line,) = lines_of(test, "moeprune runs import")
    assert len(test.get("plotly_chart")) == 1  # the map of variants
    write_traces(tmp_path / "monday.jsonl", layers)
    run(line)
    test.run()
    assert len(test.get("plotly_chart")) == 3
    assert not lines_of(test, "moeprune runs import")


def test_the_page_shows_what_the_command_says(open_page, run, told, layers, tmp_path, stats_dir):
    place = f"--model demo --stats-dir {stats_dir}"
    (tmp_path / "answers").mkdir()
    for seed, name in enumerate(("monday", "noon", "tuesday")):
        write_traces(tmp_path / "answers" / f"{name}.jsonl", layers, answers=2, seed=10 * seed)
    with (tmp_path / "answers" / "noon.jsonl").open("a") as file:
        file.write("{}\n")
    run(
        "moeprune runs import answers/monday.jsonl answers/noon.jsonl --count response "
        f"--skip-bad-rows 3 {place}"
    )
    run(f"moeprune runs import answers/tuesday.jsonl {place}")
    test = opened(open_page("explore", **PART), "traffic-held")
    assert test.selectbox(key="traffic").value == "tuesday"  # the newest
    test.selectbox(key="traffic").set_value("monday")
    test = opened(test, "traffic-corpora")
    (plan,) = lines_of(test, "moeprune plan")
    (traffic,) = lines_of(test, "moeprune traffic")
    run(plan)
    result = told(traffic)
    assert shlex.split(traffic)[2:5] == ["plan.json", "answers/monday.jsonl", "answers/noon.jsonl"]
    by_layer, by_corpus = (
        frame.value for frame in test.dataframe if {"held"} <= {*frame.value.columns}
    )
    shares = by_layer.pivot(index="layer", columns="of", values="held")
    shares = shares.rename(columns={"monday (traffic)": "held", "most possible": "best"})
    rows = [{"layer": layer, **row} for layer, row in shares.to_dict("index").items()]
    assert rows == [pytest.approx(row) for row in result["layers"]]
    assert by_corpus["corpus"].tolist() == [row["corpus"] for row in result["corpora"]]
    assert by_corpus["overlap"].tolist() == [row["overlap"] for row in result["corpora"]]
    assert by_corpus["chance"].unique().tolist() == [result["chance"]]
    ranked = by_corpus[by_corpus["ranked_the_plan"]]["corpus"].tolist()
    assert ranked == [row["corpus"] for row in result["corpora"] if row["ranked"]] == ["demo-code"]
    (said,) = (text for text in texts(test.markdown) if "as many experts could hold" in text)
    assert f"hold {result['held']:.1%} of the routed choices of monday" in said


def test_a_plan_that_removes_nothing_has_no_nearest_corpus(
    open_page, run, layers, tmp_path, stats_dir
):
    write_traces(tmp_path / "monday.jsonl", layers)
    run(f"moeprune runs import monday.jsonl --model demo --stats-dir {stats_dir}")
    test = open_page("explore", **PART | {"sparsity": "0%"})
    (said,) = (text for text in texts(test.markdown) if "as many experts could hold" in text)
    assert said.startswith("The plan's experts hold 100.0%") and "nearest" not in said
    (chart,) = (one for one in test.get("plotly_chart") if "traffic" in one.key)
    low, high = json.loads(chart.proto.spec)["layout"]["yaxis"]["range"]
    assert low < 1 < high < 1.02  # no share is more than 100%
