"""How long a search would take: the arithmetic of the range, and what it says of its origin."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from analysis.stats.store import SHIPPED_STATS
from pruning.planning.search_estimate import (
    duration_text,
    estimate_search,
    most_candidates,
    start_seconds,
)
from pruning.recipe import SearchSection
from pruning.search.store import read_known

ASKED = SearchSection(corpus="demo-math", samples=8, population=6, elites=2, generations=3)


@pytest.fixture
def known(tmp_path):
    """20 candidates on 12 samples in batches of 4, 3 layers: 90 of 180 layer evaluations ran."""
    shipped = read_known(SHIPPED_STATS / "searches" / "demo-reap.json")
    cost = {"candidates": 20, "layers": 90, "whole_layers": 180, "seconds": 36.0}
    result = shipped.result.model_copy(update={"cost": cost})
    return replace(shipped, result=result, samples=12, batch_size=4, search_id="x")


def test_candidates_are_the_population_and_what_each_generation_has_room_for():
    assert most_candidates(ASKED) == 6 + 3 * (6 - 2)


def test_a_search_made_here_gives_its_pace(known, tmp_path):
    (tmp_path / "recipe.yaml").touch()
    here = replace(known, path=tmp_path / "search.json")
    # 36 s / 90 = 0.4 s for a layer on 4 samples; a sample takes 3 x 0.4 / 4 = 0.3 s.
    made = estimate_search(ASKED, [known, here], [])
    assert made.low == pytest.approx(18 * 8 * 0.3 * 0.5)  # half of the evaluations ran
    assert made.high == pytest.approx(18 * 8 * 0.3 * 1.5)
    assert (made.candidates, made.how.startswith("From the layer evaluations of x:")) == (18, True)


def test_a_search_from_elsewhere_gives_a_wider_range(known):
    made = estimate_search(ASKED, [known, replace(known, search_id="y")], [])
    assert made.low == pytest.approx(18 * 8 * 0.3 * 0.5 / 4)
    assert made.high == pytest.approx(18 * 8 * 0.3 * 1.5)
    assert "x and 1 more" in made.how
    assert "4 times as fast" in made.how


def test_without_a_search_calibrations_do_and_without_those_nothing():
    runs = [
        SimpleNamespace(manifest=SimpleNamespace(made={"tokens_per_second": speed}))
        for speed in (512.0, 1024.0)
    ]
    made = estimate_search(ASKED, [], runs)
    assert made.high == pytest.approx(18 * 8 * 256 / 1024)
    assert made.low == pytest.approx(made.high / 5)
    assert "1,024 tokens a second" in made.how
    nothing = estimate_search(ASKED, [], [SimpleNamespace(manifest=SimpleNamespace(made={}))])
    assert (nothing.low, nothing.high, nothing.candidates) == (None, None, 18)


def test_the_start_takes_its_time_and_reads_the_weights():
    # 5 s and 4 GiB at 2 GiB/s; 30 s and 4 GiB at a quarter of a GiB/s.
    assert start_seconds(4 * 2**30) == (5 + 2, 30 + 16)


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.2, "1 s"), (89, "89 s"), (600, "10 min"), (9000, "2.5 h")]
)
def test_durations_are_read_at_a_glance(seconds, text):
    assert duration_text(seconds) == text
