"""Searches and curves of two processes that share the layers: the bits of one process."""

import json

import pytest
from curve_cases import CASE, measuring, points_at
from forks import TESTS
from masked_cases import candidates_of, subject_of, values_of

from analysis.drain import drain
from families.tiny_models import tiny_model
from pruning.measures.points import Point, whole_point
from pruning.records.sensitivity import SensitivityStore
from pruning.requests.search_settings import SearchSettings
from pruning.search.costs import RunCosts, search_parts, search_passes
from pruning.search.fitness import masked_fitness
from pruning.search.sensitivity import _mixed

# Inputs of 4 of 5 layers, width 16, float32; batches of two are padded to 9, 12 and 11 tokens.
ONE = 5 * (2 * 9 + 2 * 12 + 1 * 11) * 16 * 4


@pytest.fixture(scope="module")
def two(forks, tmp_path_factory):
    """What each of two processes saw, and their folder."""
    root = tmp_path_factory.mktemp("two")
    tiny_model(CASE).save_pretrained(root / "model")
    forks.ranks(TESTS / "two_searches.py", root, 2 * ONE)
    return root, [json.loads((root / f"seen-{rank}.json").read_text()) for rank in (0, 1)]


def test_candidates_have_the_bits_of_one_process(two):
    fitness = masked_fitness(subject_of(CASE, tiny_model(CASE)), "esap", 42, 0)
    wanted = [
        [[block.sums.tolist(), block.counts.tolist()] for block in blocks]
        for blocks in values_of(fitness, candidates_of(CASE))
    ]
    for room in ("plenty", "little", "none"):
        for seen in two[1]:
            values = seen[room][0]
            assert [[block[:2] for block in blocks] for blocks in values] == wanted
        assert two[1][0][room][0] == two[1][1][room][0]  # and as many layers


def test_each_process_keeps_inputs_of_its_own_layers_and_runs_only_what_differs(two):
    first, other = two[1]
    assert sorted(first["plenty"][2] + other["plenty"][2]) == list(range(5))
    for _, kept, own in (first["plenty"], other["plenty"]):
        assert kept == [layer for layer in own if layer < 4]  # of two changes one is before
    fitness = masked_fitness(subject_of(CASE, tiny_model(CASE)), "esap", 42, 1 << 30)
    alone = [blocks[0].layers for blocks in values_of(fitness, candidates_of(CASE))]
    assert [blocks[0][2] for blocks in first["plenty"][0]] == alone
    assert {block[2] for blocks in first["none"][0] for block in blocks} == {5}


def test_points_have_the_bits_of_one_process_and_are_resumed_by_any_number(two, tmp_path):
    root, (first, other) = two
    points = points_at(3)
    alone = measuring(tmp_path)
    drain(alone.measure(points))
    wanted = [alone.points.values(point.removed, alone.samples).tolist() for point in points]
    assert first["points"] == other["points"] == wanted
    assert first["some"] == other["some"] == wanted[:4]
    assert first["known"][0] == 1
    assert 0 < first["known"][1] == other["known"][1] < alone.layers  # four were known
    assert (first["again"], other["again"]) == (0, 0)
    assert not (root / "empty").exists()  # the first process writes
    # One process goes on where two have ended.
    more = measuring(root / "curves")
    drain(more.measure(points))
    assert not more.loads
    assert SensitivityStore([root / "curves"]).records()[0].points


def test_a_failure_in_one_process_reaches_the_other(two):
    first, other = two[1]
    assert first["full"] == "StatsError: no room for points"
    assert other["full"] == "OtherProcessError: Process 0 of 2 failed: no room for points"
    assert other["plan"] == "UserError: no such plan"
    assert first["plan"] == "OtherProcessError: Process 1 of 2 failed: no such plan"


def test_layers_cost_as_often_as_candidates_pass_them():
    layers, sparse = tuple(range(1, 13)), (1, 3, *range(4, 12))
    costs = RunCosts(layers=layers, sparse=sparse, head=5.0)
    positions = [-1, 0, 0, 4, 9]
    assert costs.passes(positions) == [
        sum(layer >= (0 if at < 0 else sparse[at]) for at in positions) for layer in range(12)
    ]
    total = sum(sum(costs.run(at).values()) for at in positions) + sum(layers)
    assert sum(costs.by_layer(costs.passes(positions))) == pytest.approx(total)
    settings = SearchSettings(population=8, elites=3, generations=6, seed=7)
    even = RunCosts(layers=(1.0,) * 1000, sparse=tuple(range(1000)))
    passes = search_passes(even, settings)
    assert passes == sorted(passes)
    expected = search_parts(even, settings).whole.total["multiply"] - 1000  # the original
    assert sum(passes) == pytest.approx(expected, rel=1e-3)


def test_points_of_early_and_late_layers_take_turns():
    points = [whole_point((0,) * 12)]
    points += [Point((0,) * 12, layer, level) for layer in range(12) for level in (1, 2, 3)]
    first, *mixed = _mixed(points)
    assert first == points[0]
    assert sorted(mixed) == sorted(points[1:])
    for start in range(len(mixed) - 3):
        early = sum(point.position < 6 for point in mixed[start : start + 4])
        assert 1 <= early <= 3
