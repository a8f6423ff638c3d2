"""Searches beside the statistics: found by model, damaged ones named, what a plan says of them."""

import json
import shutil
from pathlib import Path

import pytest

from analysis.errors import PlanError
from analysis.files.shipped import SHIPPED_STATS
from analysis.numbers.words import time_in_words
from builders import put, resealed
from pruning.planning.searches import most_candidates, start_seconds
from pruning.requests.recipe import SearchSection
from pruning.schedules.counts import read_counts
from pruning.search.store import (
    SearchStore,
    best_fitting,
    load_search,
    read_known,
    result_from_json,
    search_in,
)

NAMES = ["demo-ean", "demo-frequency", "demo-reap", "demo-seer"]


@pytest.fixture
def folder(tmp_path):
    """A folder of statistics with a job's search: a folder of its own."""
    made = tmp_path / "searches" / "made-1234abcd"
    made.mkdir(parents=True)
    shutil.copy(SHIPPED_STATS / "searches" / "demo-seer.json", made / "search.json")
    return tmp_path


def changed(path, change):
    raw = json.loads(path.read_text())
    change(raw)
    path.write_text(resealed(raw))
    return path


def test_searches_of_jobs_and_those_that_ship_are_found(demo, folder):
    (folder / "searches" / "empty").mkdir()  # a job that has measured nothing yet
    store = SearchStore([folder, SHIPPED_STATS])
    known = store.of_model(demo, pytest.fail)
    assert [search.search_id for search in known] == [*NAMES, "made-1234abcd"]
    assert store.folder("x") == folder / "searches" / "x"
    made, shipped = known[-1], known[-2]
    raw = json.loads((SHIPPED_STATS / "searches" / "demo-seer.json").read_text())
    removed = raw["candidates"][raw["best"]["candidate"]][6]
    assert made.kept == shipped.kept == {layer: 32 - of for layer, of in enumerate(removed)}
    assert (made.recipe, shipped.recipe) == (None, None)
    (folder / "searches" / "made-1234abcd" / "recipe.yaml").touch()
    assert made.recipe == folder / "searches" / "made-1234abcd" / "recipe.yaml"


def test_of_one_name_the_first_folder_s_is_meant(folder):
    mine = folder / "searches" / "demo-reap.json"
    shutil.copy(SHIPPED_STATS / "searches" / "demo-ean.json", mine)
    assert SearchStore([folder, SHIPPED_STATS]).paths()["demo-reap"] == mine


def test_a_search_of_another_model_is_not_offered(demo, folder):
    path = folder / "searches" / "made-1234abcd" / "search.json"
    changed(path, lambda raw: raw["search"]["model"].update(identity="f" * 64))
    assert SearchStore([folder]).of_model(demo, pytest.fail) == []


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda raw: raw.pop("candidates"), "is no result of a search: candidates: Field required"),
        (lambda raw: raw["search"].pop("order"), "does not say which search it is"),
        (lambda raw: raw["search"].pop("spec"), "is of an earlier version"),
        (lambda raw: raw["search"].update(removed=95), "candidates of another budget"),
        (lambda raw: raw["search"].update(model="demo"), "does not say which search it is"),
        (lambda raw: raw["experts"].update({"0": 40}), "has other layers than demo"),
        (lambda raw: raw["experts"].update({"0": 4}), "candidate 0 removes what layers do not"),
        (lambda raw: raw["candidates"][3][6].append(1), "not one number for each layer"),
        (lambda raw: raw["candidates"][2][6].__setitem__(0, "3"), "candidates.2.6.0: "),
        (put("candidates", 0, 4, to=7.0), "its esap is 7, which is not in [0, 1]"),
        (put("candidates", 0, 4, to=-0.5), "its esap is -0.5"),
        (put("candidates", 0, 6, 0, to=99), "removes what layers do not have"),
        (put("cost", "seconds", to=-1.0), "its cost is -1, which"),
        (lambda raw: raw["cost"].pop("seconds"), "its cost lacks seconds"),
        (lambda raw: raw["best"].update(candidate=9999), "candidate 9999 is named"),
    ],
)
def test_a_damaged_search_is_named_and_the_others_stay(demo, folder, change, message):
    changed(folder / "searches" / "made-1234abcd" / "search.json", change)
    problems = []
    known = SearchStore([folder, SHIPPED_STATS]).of_model(demo, problems.append)
    assert [search.search_id for search in known] == NAMES
    (problem,) = map(str, problems)
    assert "made-1234abcd/search.json" in problem
    assert message in problem


def test_a_file_that_is_no_search_is_only_numbers(tmp_path):
    counts = tmp_path / "counts.json"
    counts.write_text('{"kept": {"0": 16}}')
    assert search_in(counts) is None
    assert search_in(tmp_path / "absent.json") is None
    assert search_in(tmp_path / "counts.csv") is None
    shipped = SHIPPED_STATS / "searches" / "demo-reap.json"
    found = search_in(shipped)
    assert found is not None
    assert found.search_id == "demo-reap"
    damaged = changed(
        shutil.copy(shipped, tmp_path / "s.json"), lambda raw: raw.update(generations=[[7000]])
    )
    with pytest.raises(PlanError, match="candidate 7000 is named"):
        search_in(damaged)


def test_a_changed_number_is_named(folder):
    path = folder / "searches" / "made-1234abcd" / "search.json"
    raw = json.loads(path.read_text())
    raw["candidates"][0][4] -= 0.5  # still possible
    path.write_text(json.dumps(raw))
    with pytest.raises(PlanError, match=r"search.json is no result .* its sha256 differs"):
        load_search(path)
    raw.pop("sha256")
    path.write_text(json.dumps(raw))
    with pytest.raises(PlanError, match="it lacks sha256"):
        load_search(path)


def test_the_search_that_looked_longest_is_the_one_meant(folder):
    reap = read_known(SHIPPED_STATS / "searches" / "demo-reap.json")
    seer = read_known(SHIPPED_STATS / "searches" / "demo-seer.json")
    path = folder / "searches" / "made-1234abcd" / "search.json"
    longer = read_known(
        changed(path, lambda raw: raw["search"]["corpus"].update(samples=2 * seer.samples))
    )
    assert best_fitting([reap, seer, longer], "seer", 96) is longer
    assert best_fitting([seer, reap], "seer", 96) is seer
    assert best_fitting([reap, seer], "seer", 95) is None
    assert best_fitting([reap, seer], "man", 96) is None


MOST_BYTES = 200 << 10
SEARCHES = sorted((SHIPPED_STATS / "searches").glob("*.json"))


@pytest.mark.parametrize("path", SEARCHES, ids=lambda path: path.stem)
def test_a_shipped_search_is_of_the_demo_and_spends_its_budget(demo, path: Path):
    result = load_search(path)
    assert path.stat().st_size < MOST_BYTES
    assert result.to_json() == path.read_text()
    assert result.header["model"]["identity"] == demo.identity
    assert path.stem == f"demo-{result.header['spec']['ranking']['criterion']}"
    assert result.is_finished
    assert {sum(entry.removed) for entry in result.entries} == {96}  # half of 6 x 32
    assert sum(read_counts(path, demo.layers).values()) == 96
    uniform = next(entry for entry in result.entries if entry.origin == "uniform")
    assert result.best_entry.fitness > uniform.fitness


def test_candidates_are_the_population_and_what_each_generation_has_room_for():
    asked = SearchSection(corpus="demo-math", samples=8, population=6, elites=2, generations=3)
    assert most_candidates(asked) == 6 + 3 * (6 - 2)


def test_the_start_takes_its_time_and_reads_the_weights():
    # 5 s and 4 GiB at 2 GiB/s; 30 s and 4 GiB at a quarter of a GiB/s.
    assert start_seconds(4 * 2**30) == (5 + 2, 30 + 16)


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.2, "1 s"), (89, "89 s"), (600, "10 min"), (9000, "2.5 h")]
)
def test_durations_are_read_at_a_glance(seconds, text):
    assert time_in_words(seconds) == text


def test_the_fitness_of_a_loss_is_negative():
    raw = json.loads((SHIPPED_STATS / "searches" / "demo-ean.json").read_text())
    raw["search"]["fitness"] = "nll"
    with pytest.raises(PlanError, match=r"its nll is 0\.\d+, which is not in .-inf, 0."):
        result_from_json(resealed(raw))
    for candidate in raw["candidates"]:
        candidate[4] *= -1
    raw["best"]["fitness"] *= -1
    assert result_from_json(resealed(raw)).best_entry.fitness < 0
