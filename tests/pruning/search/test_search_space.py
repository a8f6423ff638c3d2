"""The feasible set, draws from it, and level switches against the paper's procedure."""

from collections import defaultdict
from fractions import Fraction
from itertools import permutations
from math import comb

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from search_cases import listed, p_value, space

from analysis.families.base import MoELayer
from pruning.plan.constraints import Constraints
from pruning.search.evolution import mutate, switch_budget
from pruning.search.space import integer_below

DRAWS = 5_000
CASES = {
    "plain": (space(6), 15),  # b, c in 0..3 with a = 6 - b - c in 0..5: all 16 but b = c = 0
    "multiples": (space(6, (MoELayer(0, 8, 2), MoELayer(2, 6, 2)), Constraints(2)), 3),
    "groups": (space(8, (MoELayer(0, 12, 2, 4), MoELayer(1, 8, 2, 4), MoELayer(5, 8, 2, 4))), 4),
    "protected": (space(5, constraints=Constraints(protected=frozenset({3}))), 4),
    "fixed": (space(5, constraints=Constraints(fixed={1: 5})), 4),
}


@pytest.mark.parametrize("name", CASES)
def test_draws_are_uniform_over_a_list_of_that_size(name):
    feasible, size = CASES[name]
    everything = listed(feasible)
    assert feasible.size == len(everything) == size
    rng = np.random.default_rng(11)
    draws = [feasible.draw(rng) for _ in range(DRAWS)]
    assert p_value(draws, dict.fromkeys(everything, 1 / size)) > 1e-3


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


def test_integers_beyond_a_machine_word_are_uniform():
    limit = 3 << 70
    rng = np.random.default_rng(5)
    draws = [integer_below(rng, limit) for _ in range(6000)]
    assert max(draws) < limit
    thirds = [int(Fraction(draw, limit) * 3) for draw in draws]
    assert p_value(thirds, dict.fromkeys(range(3), 1 / 3)) > 1e-3
    assert any(draw & 1 for draw in draws)  # low bits are drawn too


START = (5, 0, 1)  # the first layer is full, the second empty: most proposals are infeasible
MAX_TRANSFER = 4


def one_switch(feasible, start, max_transfer):
    """Probability of each result of a switch: equal for each feasible (a, b, Delta).

    So it is by Algorithm 1, lines 14 to 18: these are drawn anew until the result is feasible.
    """
    results = []
    for more, less in permutations(range(len(start)), 2):
        for transfer in range(1, max_transfer + 1):
            proposed = list(start)
            proposed[more] += transfer * feasible.units.step
            proposed[less] -= transfer * feasible.units.step
            if feasible.holds(proposed):
                results.append(tuple(proposed))
    law = defaultdict(float)
    for result in results:
        law[result] += 1 / len(results)
    return law


def test_a_switch_follows_the_law_of_drawing_until_feasible():
    feasible = space(6)
    law = one_switch(feasible, START, MAX_TRANSFER)
    rng = np.random.default_rng(3)
    children = [switch_budget(START, feasible, MAX_TRANSFER, rng) for _ in range(5000)]
    assert p_value(children, law) > 1e-3


def test_a_child_follows_the_law_of_one_to_three_switches():
    feasible = space(6)
    # P(min of two draws from 1..3 = 1, 2, 3) = 5/9, 3/9, 1/9.
    law, reached = defaultdict(float), {START: 1.0}
    for chance in (5 / 9, 3 / 9, 1 / 9):
        after = defaultdict(float)
        for state, weight in reached.items():
            for result, probability in one_switch(feasible, state, MAX_TRANSFER).items():
                after[result] += weight * probability
        reached = after
        for state, weight in reached.items():
            law[state] += chance * weight
    rng = np.random.default_rng(4)
    draws = [mutate(START, feasible, MAX_TRANSFER, 3, rng) for _ in range(10_000)]
    assert p_value(draws, law) > 1e-3


@given(seed=st.integers(0, 999), total=st.integers(1, 17), multiple=st.sampled_from([1, 2, 3]))
def test_children_keep_budget_and_bounds(seed, total, multiple):
    layers = (MoELayer(0, 12, 2), MoELayer(4, 9, 2), MoELayer(5, 6, 2))
    limits = Constraints(multiple, pinned={4: frozenset({1})})
    reachable = total * multiple - sum(layer.num_experts % multiple for layer in layers)
    least = sum(layer.num_experts % multiple for layer in layers)
    most = sum(size - (-(-2 // multiple) * multiple) for size in (12, 9, 6))
    feasible = space(min(max(reachable, least), most), layers, limits)
    rng = np.random.default_rng(seed)
    removed = feasible.draw(rng)
    if feasible.size > 1:
        child = mutate(removed, feasible, 4, 3, rng)
        assert child in listed(feasible)


def test_without_another_allocation_a_switch_is_refused():
    with pytest.raises(ValueError, match="nothing to switch"):
        switch_budget((0, 0, 0), space(0), 4, np.random.default_rng(0))
