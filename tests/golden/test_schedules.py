"""Every schedule by hand and by enumeration: two layers of four experts, any number of them gone.

The layers are 1 and 4, their routers pick one expert: at most 3 of each can go, 6 in all.

    saliency   layer 1: 5  1  4  2      layer 4: 3  30  10  2
    tokens     layer 1: 10 0  40 30     layer 4: 20 20  0   40
"""

from fractions import Fraction as F
from itertools import product

import numpy as np
import pytest
from allocations import patterned, sensitivity_of
from search_cases import Alone, searched
from search_cases import task as search_task

from analysis.errors import PlanError
from analysis.families.base import MoELayer
from pruning.plan.budget import count_budget, sparsity_budget
from pruning.plan.units import expert_units
from pruning.requests.search_settings import SearchSettings
from pruning.schedules import PATTERNS, SCHEDULES, Evidence, allocate, uniform
from pruning.search.scores import BlockFitness
from pruning.search.space import seeds_of, space_of

TWO = (MoELayer(1, 4, 1), MoELayer(4, 4, 1))
THREE = (*TWO, MoELayer(5, 4, 1))
CAP = 3
SALIENCY = ((5, 1, 4, 2), (3, 30, 10, 2))
TOKENS = ((10, 0, 40, 30), (20, 20, 0, 40))
# Costs of losing 0, 1, 2, 3 experts: layer 1 breaks at its third, layer 4 at its first.
COSTS = ((0, 1, 2, 9), (0, 4, 5, 6))
EVIDENCE = Evidence(
    np.array(SALIENCY, dtype=float),
    np.array(TOKENS, dtype=float),
    sensitivity=sensitivity_of(*COSTS),
)

# Removed from layers 1 and 4 when B = 0, 1, ..., 6 experts go.
BY_HAND = {
    # B/2 each; the odd one from the lower layer.
    "uniform": ((0, 0), (1, 0), (1, 1), (2, 1), (2, 2), (3, 2), (3, 3)),
    # Ascending: 1 (layer 1), 2 and 2 (the lower layer is kept first), 3 (layer 4), 4 (layer 1);
    # then 5 is next, but layer 1 keeps one expert: 10.
    "global": ((0, 0), (1, 0), (1, 1), (2, 1), (2, 2), (3, 2), (3, 3)),
    # Layer 1: 1, 0, 3/4, 1/4. Layer 4: 1/28, 1, 8/28, 0. Ascending: 0 and 0 (the lower layer is
    # kept first), 1/28 (layer 4), 1/4 (layer 1), 8/28 (layer 4), 3/4 (layer 1).
    "global-rescaled": ((0, 0), (0, 1), (1, 1), (1, 2), (2, 2), (2, 3), (3, 3)),
    # The two that no token reached go first, of the upper layer before the lower; then 10, then
    # 20 and 20 of layer 4, which then has one left: 30.
    "frequency": ((0, 0), (0, 1), (1, 1), (2, 1), (2, 2), (2, 3), (3, 3)),
    # 2 : 1. Quotas 2/3 1/3, 4/3 2/3, 2 1, 8/3 4/3, then 3 (of 10/3) and the rest.
    "early": ((0, 0), (1, 0), (1, 1), (2, 1), (3, 1), (3, 2), (3, 3)),
    # Of two layers both are the middle: 1 : 1.
    "middle": ((0, 0), (1, 0), (1, 1), (2, 1), (2, 2), (3, 2), (3, 3)),
    # 1 : 2.
    "late": ((0, 0), (0, 1), (1, 1), (1, 2), (1, 3), (2, 3), (3, 3)),
    # The cheapest: 1; 2; 1 + 4 and 0 + 5 of no less than 2; 3 as 2 + 4 or 0 + 6, the lower layer
    # keeps more; 1 + 6; 2 + 6; 9 + 6.
    "measured": ((0, 0), (1, 0), (2, 0), (0, 3), (1, 3), (2, 3), (3, 3)),
    # What the file says, here of another number kept each time.
    "file": ((0, 0), (1, 0), (0, 2), (3, 0), (1, 3), (2, 3), (3, 3)),
}
# Of three layers, B = 1, 4, 7.
PATTERNS_BY_HAND = {
    # 3 : 2 : 1. 1/2 1/3 1/6; 2 4/3 2/3; 7/2 is 3 at most, and 4 left for 2 : 1 are 8/3 4/3.
    "early": ((1, 0, 0), (2, 1, 1), (3, 3, 1)),
    # 1 : 2 : 1. 1/4 1/2 1/4; 1 2 1; 7/2 is 3 at most, and 4 left for 1 : 1.
    "middle": ((0, 1, 0), (1, 2, 1), (2, 3, 2)),
    # 1 : 2 : 3. 1/6 1/3 1/2; 2/3 4/3 2; 7/2 is 3 at most, and 4 left for 1 : 2 are 4/3 8/3.
    "late": ((0, 0, 1), (1, 1, 2), (1, 3, 3)),
}


def evidence_of(name, total):
    if name != "file":
        return EVIDENCE
    kept = zip(TWO, BY_HAND["file"][total], strict=True)
    return Evidence(counts={layer.index: layer.num_experts - gone for layer, gone in kept})


def spent(name, total):
    units = expert_units(TWO)
    return allocate(name, units, count_budget(units, total), evidence_of(name, total)).removed


def test_every_schedule_has_its_numbers_by_hand():
    assert set(BY_HAND) == set(SCHEDULES)
    assert set(PATTERNS_BY_HAND) == set(PATTERNS)


@pytest.mark.parametrize("total", range(7))
@pytest.mark.parametrize("name", BY_HAND)
def test_a_schedule_spends_as_by_hand(name, total):
    assert spent(name, total) == BY_HAND[name][total]


@pytest.mark.parametrize("name", PATTERNS)
def test_patterns_of_three_layers_by_hand(name):
    budgets = (count_budget(expert_units(THREE), n) for n in (1, 4, 7))
    found = [patterned(THREE, budget, name).removed for budget in budgets]
    assert tuple(found) == PATTERNS_BY_HAND[name]


@pytest.mark.parametrize("name", sorted(set(BY_HAND) - {"file"}))
def test_more_than_can_go_is_refused(name):
    with pytest.raises(PlanError, match=r"7 \(87.5%\) of 8 experts, but at most 6 \(75%\) can go"):
        spent(name, 7)


def test_a_file_is_refused_where_it_spends_another_budget_or_empties_a_layer():
    units = expert_units(TWO)
    with pytest.raises(PlanError, match="removes 4 experts, but 3 is 3"):
        allocate("file", units, count_budget(units, 3), evidence_of("file", 4))
    with pytest.raises(PlanError, match="keep 0 of 4 experts, but its router picks 1"):
        allocate("file", units, count_budget(units, 4), Evidence(counts={1: 0, 4: 4}))


def possible(total, layers):
    every = product(range(CAP + 1), repeat=layers)
    return [removed for removed in every if sum(removed) == total]


def lowest(total, values):
    """Of all ways to remove B, that which loses least; of equal ones, lower layers lose less."""

    def lost(removed):
        pairs = zip(removed, values, strict=True)
        return sum(sum(sorted(own)[:gone]) for gone, own in pairs)

    return min(possible(total, len(values)), key=lambda removed: (lost(removed), removed))


def rescaled(values):
    return [[F(v - min(own), max(own) - min(own)) for v in own] for own in values]


def nearest(total, weights):
    """Of all ways to remove B, the nearest to the quotas, where full layers take part no more.

    Largest remainders give the smallest sum of squares; of equal ones, lower layers lose more.
    """
    full: set[int] = set()
    while True:
        left = total - CAP * len(full)
        whole = sum(w for i, w in enumerate(weights) if i not in full)
        quotas = [F(CAP) if i in full else F(left * w, whole) for i, w in enumerate(weights)]
        over = {i for i, quota in enumerate(quotas) if quota > CAP}
        if not over:
            break
        full |= over

    def key(removed):
        away = sum((gone - quota) ** 2 for gone, quota in zip(removed, quotas, strict=True))
        return away, [-gone for gone in removed]

    return min(possible(total, len(weights)), key=key)


@pytest.mark.parametrize("total", range(7))
def test_global_schedules_lose_least_of_all_ways(total):
    assert lowest(total, SALIENCY) == spent("global", total)
    assert lowest(total, rescaled(SALIENCY)) == spent("global-rescaled", total)
    assert lowest(total, TOKENS) == spent("frequency", total)


@pytest.mark.parametrize("total", range(9))
def test_shares_are_the_nearest_of_all_ways(total):
    weights = {"early": (3, 2, 1), "middle": (1, 2, 1), "late": (1, 2, 3)}
    budget = count_budget(expert_units(THREE), total)
    for name, of_layers in weights.items():
        assert nearest(total, of_layers) == patterned(THREE, budget, name).removed
    assert nearest(total, (1, 1, 1)) == uniform(THREE, budget).removed


# B = 3 from the two layers: these are all ways. Two are equally fit.
FITNESS = {(0, 3): 0.25, (1, 2): 0.75, (2, 1): 0.5, (3, 0): 0.75}


class Known(Alone):
    """Fitness from a table, on one sample."""

    num_blocks = num_layers = 1

    def __init__(self, table):
        self.table = table

    def block(self, removed, number):
        return BlockFitness(np.array([self.table[removed]]), np.ones(1, np.int64), 1)


def test_a_search_finds_the_best_and_of_equal_ones_the_first(tmp_path):
    settings = SearchSettings(population=4, elites=1, generations=3, seed=1)
    seeds = {"late": (1, 2)}
    one = {"measure": "esap", "samples": 1}
    tied = searched(tmp_path / "tied", search_task(3, settings, seeds, TWO), Known(FITNESS), **one)
    assert {candidate.removed for candidate in tied.candidates} == set(FITNESS)
    assert tied.best.removed == (1, 2)
    better = FITNESS | {(0, 3): 0.875}
    found = searched(tmp_path / "found", search_task(3, settings, seeds, TWO), Known(better), **one)
    assert found.best.removed == (0, 3)
    assert found.scores[found.best.number].fitness == 0.875


def test_a_search_starts_from_the_schedules_by_hand():
    units = expert_units(TWO)
    budget = count_budget(units, 4)
    scheduled = allocate("global-rescaled", units, budget, EVIDENCE)
    space = space_of(units, budget, scheduled)
    assert seeds_of(space, budget, "global-rescaled", scheduled) == {
        "uniform": (2, 2),
        "early": (3, 1),
        "middle": (2, 2),
        "late": (1, 3),
        "global-rescaled": (2, 2),
    }
    # Of a sparsity, uniform is its share of every layer: 4 * 0.6 = 2.4, so 2 of each.
    budget, even = sparsity_budget(units, "60%"), uniform(TWO, "60%")
    space = space_of(units, budget, even)
    assert seeds_of(space, budget, "uniform", even)["uniform"] == (2, 2)
