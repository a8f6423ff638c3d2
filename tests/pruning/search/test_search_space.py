"""The feasible set and the draws from it, against lists of all its elements."""

from fractions import Fraction
from math import comb

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from search_cases import LAYERS, listed, p_value, space

from analysis.errors import PlanError
from analysis.families import MoELayer
from pruning.constraints import Constraints
from pruning.search.space import integer_below

DRAWS = 20_000
CASES = {
    "plain": (space(6), 15),  # b, c in 0..3 with a = 6 - b - c in 0..5: all 16 but b = c = 0
    "multiples": (space(6, (MoELayer(0, 8, 2), MoELayer(2, 6, 2)), Constraints(2)), 3),
    "groups": (space(8, (MoELayer(0, 12, 2, 4), MoELayer(1, 8, 2, 4), MoELayer(5, 8, 2, 4))), 4),
    "protected": (space(5, constraints=Constraints(protected=frozenset({3}))), 4),
    "fixed": (space(5, constraints=Constraints(fixed={1: 5})), 4),
}


@pytest.mark.parametrize("name", CASES)
def test_the_size_is_that_of_the_list(name):
    feasible, size = CASES[name]
    assert feasible.size == len(listed(feasible)) == size


@pytest.mark.parametrize("name", CASES)
def test_draws_are_uniform_over_the_list(name):
    feasible, _ = CASES[name]
    everything = listed(feasible)
    rng = np.random.default_rng(11)
    draws = [feasible.draw(rng) for _ in range(DRAWS // 4)]
    expected = dict.fromkeys(everything, 1 / len(everything))
    assert p_value(draws, expected) > 1e-3


def test_the_chi_square_test_would_notice_draws_layer_by_layer():
    # A walk that gives each layer any number that can still be completed is not uniform.
    feasible, _ = CASES["plain"]
    everything, rng, draws = listed(feasible), np.random.default_rng(11), []
    for _ in range(DRAWS // 4):
        left = everything
        for layer in range(len(LAYERS)):
            chosen = rng.choice(sorted({removed[layer] for removed in left}))
            left = [removed for removed in left if removed[layer] == chosen]
        draws.append(left[0])
    assert p_value(draws, dict.fromkeys(everything, 1 / len(everything))) < 1e-6


@given(
    sizes=st.lists(st.integers(3, 9), min_size=1, max_size=4),
    share=st.fractions(0, 1),
    seed=st.integers(0, 99),
)
def test_draws_are_feasible(sizes, share, seed):
    layers = tuple(MoELayer(2 * i, size, 2) for i, size in enumerate(sizes))
    total = int(share * sum(size - 2 for size in sizes))
    feasible = space(total, layers)
    drawn = feasible.draw(np.random.default_rng(seed))
    assert drawn in listed(feasible)
    assert feasible.holds(drawn)
    assert feasible.removed_by(feasible.steps_of(drawn)) == drawn


def test_counts_are_exact_where_floats_would_not_be():
    # 48 layers of 128 with top-8, half removed: by the inclusion-exclusion formula in integers.
    layers = tuple(MoELayer(i, 128, 8) for i in range(48))
    feasible = space(48 * 64, layers)
    total, cap = 48 * 64, 121
    by_formula = sum(
        (-1) ** k * comb(48, k) * comb(total - k * cap + 47, 47) for k in range(total // cap + 1)
        if total - k * cap >= 0
    )  # fmt: skip
    assert feasible.size == by_formula
    assert int(float(by_formula)) != by_formula
    assert feasible.holds(feasible.draw(np.random.default_rng(0)))


def test_a_budget_without_room_is_refused_with_what_works():
    with pytest.raises(PlanError, match="at most 11 "):
        space(12)


def test_integers_beyond_a_machine_word_are_uniform():
    limit = 3 << 70
    rng = np.random.default_rng(5)
    draws = [integer_below(rng, limit) for _ in range(6000)]
    assert max(draws) < limit
    thirds = [int(Fraction(draw, limit) * 3) for draw in draws]
    assert p_value(thirds, dict.fromkeys(range(3), 1 / 3)) > 1e-3
    assert any(draw & 1 for draw in draws)  # low bits are drawn too
