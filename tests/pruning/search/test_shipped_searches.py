"""The searches that ship with the demo: of its model, whole, and of one budget."""

from pathlib import Path

import pytest

from analysis.stats.store import SHIPPED_STATS
from pruning.schedules import read_counts
from pruning.search.result import load_search

MOST_BYTES = 200 << 10
SEARCHES = sorted((SHIPPED_STATS / "searches").glob("*.json"))


def test_there_is_one_for_each_main_criterion():
    names = ["demo-ean", "demo-frequency", "demo-reap", "demo-seer"]
    assert [path.stem for path in SEARCHES] == names


@pytest.mark.parametrize("path", SEARCHES, ids=lambda path: path.stem)
def test_a_shipped_search_is_of_the_demo_and_spends_its_budget(demo, path: Path):
    result = load_search(path)
    assert path.stat().st_size < MOST_BYTES
    assert result.to_json() == path.read_text()
    assert result.header["model"]["identity"] == demo.identity
    assert path.stem == f"demo-{result.header['criterion']}"
    assert result.is_finished
    assert {sum(entry.removed) for entry in result.entries} == {96}  # half of 6 x 32
    assert sum(read_counts(path, demo.layers).values()) == 96
    uniform = next(entry for entry in result.entries if entry.origin == "uniform")
    assert result.best_entry.fitness > uniform.fitness
