"""The exact allocator against every allocation there is."""

import time
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from allocations import choices_of
from hypothesis import given
from hypothesis import strategies as st

from analysis.errors import PlanError
from analysis.families.base import MoELayer
from pruning.measures.allocator import LayerChoices, solve, solve_worst, weighted, weightings
from pruning.plan.constraints import Constraints
from pruning.plan.units import expert_units

# Sums of these are exact in any order, and many of them are equal: ties are real ties.
COSTS = st.integers(-6, 12).map(lambda n: n / 4)


@st.composite
def choices(draw):
    removed = draw(st.lists(st.integers(0, 9), min_size=1, max_size=5, unique=True).map(sorted))
    costs = [draw(COSTS) for _ in removed]
    weight = draw(st.sampled_from((1, 1, 2, 3, 6)))
    return LayerChoices(np.array(removed), np.array(costs), weight)


def every(layers):
    """Total -> all allocations that spend it, with their costs, the best first."""
    found = {}
    for options in product(*(range(len(layer.removed)) for layer in layers)):
        pairs = list(zip(layers, options, strict=True))
        removed = tuple(int(layer.removed[option]) for layer, option in pairs)
        total = sum(gone * layer.weight for gone, layer in zip(removed, layers, strict=True))
        cost = sum(float(layer.costs[option]) for layer, option in pairs)
        found.setdefault(total, []).append((cost, removed))
    return {total: sorted(solutions) for total, solutions in found.items()}


@given(st.lists(choices(), min_size=1, max_size=4))
def test_every_budget_equals_brute_force(layers):
    found, listed = solve(layers), every(layers)
    assert found.totals.tolist() == sorted(listed)
    table = found.all_removed()
    for total, row in zip(found.totals.tolist(), table.tolist(), strict=True):
        cost, removed = listed[total][0]
        assert found.at(total) == (total, removed, cost)
        assert tuple(row) == removed


LIMITS = {
    "plain": ((MoELayer(0, 6, 2), MoELayer(1, 5, 2), MoELayer(3, 4, 1)), Constraints()),
    "multiples": ((MoELayer(0, 8, 2), MoELayer(2, 6, 2)), Constraints(multiple_of=2)),
    "groups": ((MoELayer(0, 12, 2, 4), MoELayer(1, 8, 2, 4), MoELayer(5, 8, 2, 4)), Constraints()),
    "protected": ((MoELayer(0, 6, 2), MoELayer(1, 5, 2)), Constraints(protected=frozenset({1}))),
    "dropped": ((MoELayer(0, 6, 2), MoELayer(1, 5, 2)), Constraints(dropped={0: frozenset({3})})),
}


@pytest.mark.parametrize("name", LIMITS)
@pytest.mark.parametrize("seed", range(3))
def test_bounds_of_routers_and_constraints(name, seed):
    layers, limits = LIMITS[name]
    units = expert_units(layers, limits)
    rng = np.random.default_rng(seed)
    chosen = []
    for choices in choices_of(units):
        removed = np.array(choices)
        chosen.append(LayerChoices(removed, rng.integers(0, 5, len(removed)) / 2))
    found, listed = solve(chosen), every(chosen)
    assert found.totals.tolist() == sorted(listed)
    for total in listed:
        solution = found.at(total)
        assert (solution.cost, solution.removed) == listed[total][0]
        assert not units.misfits(solution.removed)
    with pytest.raises(PlanError, match="nearest"):
        found.at(max(listed) + 1)


def test_94_layers_of_128_experts_take_well_below_a_second():
    rng = np.random.default_rng(3)
    removed = np.arange(121)
    layers = [LayerChoices(removed, rng.random(121).cumsum()) for _ in range(94)]
    started = time.process_time()
    found = solve(layers)
    assert time.process_time() - started < 2  # 0.3 s where nothing else runs
    assert len(found.totals) == 94 * 120 + 1
    assert found.at(94 * 60).cost < sum(float(layer.costs[60]) for layer in layers)


@given(st.data(), st.integers(1, 3))
def test_the_worst_of_several_corpora_lies_between_bound_and_candidate(data, count):
    first = data.draw(st.lists(choices(), min_size=1, max_size=3))
    drawn = [
        [[data.draw(COSTS) for _ in layer.removed] for layer in first] for _ in range(count - 1)
    ]
    others = [
        [replace(layer, costs=np.array(costs)) for layer, costs in zip(first, lists, strict=True)]
        for lists in drawn
    ]
    corpora = [first, *others]
    lists = [every(layers) for layers in corpora]
    found = solve_worst(corpora)
    for place, total in enumerate(found.totals.tolist()):
        by_corpus = [{removed: cost for cost, removed in table[total]} for table in lists]
        worst = {removed: max(costs[removed] for costs in by_corpus) for removed in by_corpus[0]}
        at = found.at(total)
        assert at.cost == pytest.approx(worst[at.removed])
        assert found.bounds[place] - 1e-9 <= min(worst.values()) <= at.cost + 1e-9
        if count == 1:
            assert at.cost == min(worst.values())


def test_weights_find_what_suits_both_corpora():
    # Corpus a suffers in layer 0, b in layer 1: each alone takes the other's layer bare.
    removed, cheap, dear = np.arange(4), np.array([0, 0, 0, 0.0]), np.array([0, 1, 2, 3.0])
    corpora = [
        [LayerChoices(removed, dear), LayerChoices(removed, cheap)],
        [LayerChoices(removed, cheap), LayerChoices(removed, dear)],
    ]
    found = solve_worst(corpora)
    assert found.at(4).removed == (2, 2)
    assert found.at(4).cost == found.bounds[4] == 2
    assert solve(weighted(corpora, (0.5, 0.5))).at(4).removed == (1, 3)  # the mean does not mind


@pytest.mark.parametrize(("count", "points"), [(1, 1), (2, 33), (3, 45), (9, 45)])
def test_the_grid_of_weightings_has_every_corner(count, points):
    grid = weightings(count)
    assert len(grid) == len(set(grid)) == points
    assert all(sum(weights) == pytest.approx(1) for weights in grid)
    assert sum(max(weights) == 1 for weights in grid) == count
