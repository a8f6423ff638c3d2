"""Load in its short form; `python -m tools.reliability.load` is the long one. Nothing is timed."""

import asyncio

import pytest

from tools.reliability import load_lists, load_pages, load_sessions, load_world
from tools.reliability.load_world import make_world

SESSIONS, TOGGLES = 3, 3
JOBS, RUNS = 30, 40


@pytest.fixture(autouse=True)
def few_turns(monkeypatch):
    """Of what the long form times: enough for a toggle there and back."""
    for module in (load_world, load_lists):
        monkeypatch.setattr(module, "TURNS", 2)


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    return make_world(tmp_path_factory.mktemp("load"), 4, 16)


@pytest.fixture(scope="module")
def server(world):
    with world.server() as server:
        yield server


@pytest.mark.slow  # tests/app has every page alone
def test_sessions_at_once_see_what_one_alone_sees(server):
    alone, together = asyncio.run(load_sessions.measure(server, (1, SESSIONS), TOGGLES, seed=3))
    assert alone.problems == together.problems == []
    assert (len(alone.toggles), len(together.toggles)) == (TOGGLES, SESSIONS * TOGGLES)
    table = load_sessions.table_of([alone, together])
    assert table[["errors", "wrong"]].to_numpy().tolist() == [[0, 0], [0, 0]]


@pytest.mark.slow
def test_a_long_table_lists_every_job_once(world):
    table, problems = load_lists.measure_jobs(world, JOBS)
    assert problems == []
    assert {"moeprune jobs list --limit 5000", "Start page"} <= set(table["what"])


@pytest.mark.slow
def test_every_run_of_a_large_cache_is_listed_once(tmp_path):
    table, problems = load_lists.measure_runs(make_world(tmp_path, 4, 16), RUNS)
    assert problems == []
    assert {"moeprune runs list", "Explore page, a toggle"} <= set(table["what"])


@pytest.mark.slow
def test_pages_of_a_model_of_512_experts_open(tmp_path):
    table, problems = load_pages.measure(make_world(tmp_path, 3, 512))
    assert problems == []
    assert set(table["page"]) == {"start", *load_pages.PAGES} - {""}
