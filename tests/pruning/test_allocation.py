"""Allocations: what layers and groups must keep, shares of a total, counts that no longer fit."""

import itertools
from dataclasses import replace
from decimal import Decimal
from fractions import Fraction
from itertools import product

import numpy as np
import pandas as pd
import pytest
from allocations import choices_of
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from analysis.errors import PlanError
from analysis.families.base import MoELayer
from analysis.families.listing import FAMILIES
from analysis.model.moe_model import ModelRef
from analysis.numbers.sparsity import as_percent, num_removed, parse_sparsity
from analysis.ranking.experts import keeping_order
from analysis.stats.grid import Grid
from analysis.stats.manifest import MeasuredModel
from pruning.plan.budget import count_budget, sparsity_budget
from pruning.plan.constraints import Constraints
from pruning.plan.kept import check_kept
from pruning.plan.selection import Allocation, select_experts
from pruning.plan.units import Units, apportion, expert_units
from pruning.schedules import allocate, fit_counts, uniform


def test_numbers_by_layer_and_the_exact_fractions_removed():
    allocation = Allocation((MoELayer(1, 7, 2), MoELayer(4, 6, 2)), (5, 6))
    assert allocation.ratios == (Fraction(2, 7), Fraction(0))
    assert allocation.removed == (2, 0)
    assert allocation.counts == {1: 5, 4: 6}


@pytest.mark.parametrize(
    "sparsity", ["0.55", "55%", " 55 % ", ".55", 0.55, Decimal("0.55"), Fraction(11, 20)]
)
def test_sparsity_is_read_as_an_exact_decimal(sparsity):
    # int(60 * (1 - 0.55)) is 26: rounding the number kept in floats loses one.
    assert uniform((MoELayer(2, 60, 4),), sparsity).keep == (27,)


@pytest.mark.parametrize(
    "sparsity",
    ["-0.1", "1", "50", "100%", "half", "", "nan", "1/2", "1e-999999999", float("inf"), "\n3\n"],
)
def test_bad_sparsity_gets_one_clear_line(sparsity):
    with pytest.raises(PlanError, match=r"^The share .*(is not a number|is out of range).*$"):
        uniform((MoELayer(2, 60, 4),), sparsity)


@given(experts=st.integers(1, 512), percent=st.integers(0, 99))
def test_uniform_removes_the_floor_in_integer_arithmetic(experts, percent):
    layers = (MoELayer(1, experts, 1), MoELayer(3, experts, 1))
    removed = experts * percent // 100
    for sparsity in (f"{percent}%", Fraction(percent, 100), percent / 100):
        assert uniform(layers, sparsity).keep == (experts - removed,) * 2


@given(st.integers(1, 10**8).flatmap(lambda n: st.tuples(st.integers(0, n - 1), st.just(n))))
def test_a_percentage_that_is_named_removes_what_it_was_named_for(part):
    number, size = part
    assert num_removed(size, parse_sparsity(as_percent(number, size))) == number


def test_percentages_are_short():
    named = [as_percent(*part) for part in [(0, 6), (2, 6), (3, 4), (1, 1536), (2047, 2048)]]
    assert named == ["0%", "33.34%", "75%", "0.065105%", "99.952%"]


def test_a_floor_is_kept_or_names_itself():
    layers = (MoELayer(0, 8, 2), MoELayer(1, 8, 2))
    limits = Constraints(floor=5)
    assert uniform(layers, "37.5%", limits).keep == (5, 5)
    with pytest.raises(PlanError, match=r"keep 4 of 8 .* keep 5 to 8; nearest .*: 37.5%\.$"):
        uniform(layers, "50%", limits)
    with pytest.raises(PlanError, match=r"at most 6 \(37.5%\) can go"):
        uniform(layers, count_budget(expert_units(layers), 7), limits)
    # A floor above a layer's size asks for all that it has.
    assert uniform(layers, "0", Constraints(floor=99)).keep == (8, 8)
    with pytest.raises(PlanError, match="below 0"):
        Constraints(floor=-1)


@settings(max_examples=100)
@given(
    rows=st.lists(
        st.tuples(st.integers(1, 5), st.integers(0, 3), st.integers(0, 4)), min_size=1, max_size=4
    ),
    steps=st.integers(0, 12),
    step=st.sampled_from([1, 2, 3]),
)
def test_apportionment_is_the_nearest_to_its_quotas(rows, steps, step):
    least = tuple(low for _, low, _ in rows)
    most = tuple(low + step * more for _, low, more in rows)
    units = Units((99,) * len(rows), least, most, step)
    weights = [row[0] for row in rows]
    assume(steps < len(units.totals))
    total = units.totals[steps]
    found = apportion(total, weights, units)
    assert sum(found) == total
    choices = choices_of(units)
    assert all(map(range.__contains__, choices, found))
    # The level at which bounded quotas sum to the total, by bisection in floats.
    low, high = 0.0, 1e3
    for _ in range(200):
        middle = (low + high) / 2
        quotas = [min(max(middle * w, n[0]), n[-1]) for w, n in zip(weights, choices, strict=True)]
        low, high = (middle, high) if sum(quotas) < total else (low, middle)

    def distance(counts):
        return sum(abs(n - quota) for n, quota in zip(counts, quotas, strict=True))

    every = itertools.product(*choices)
    nearest = min(distance(counts) for counts in every if sum(counts) == total)
    assert distance(found) == pytest.approx(nearest, abs=1e-6)


def layer(index, experts=12, top_k=2):
    return MoELayer(index, experts, top_k)


@st.composite
def budgets(draw):
    """Experts under constraints that can be met, a budget that they can spend, and counts."""
    layers = tuple(layer(2 * n + 1, draw(st.sampled_from((9, 12, 14)))) for n in range(4))
    constraints = Constraints(
        multiple_of=draw(st.sampled_from((1, 2, 4))),
        protected=frozenset(draw(st.sets(st.sampled_from((1, 3)), max_size=1))),
        dropped={5: frozenset(draw(st.sets(st.integers(0, 7), max_size=3)))},
        floor=draw(st.integers(0, 4)),
    )
    units = expert_units(layers, constraints)
    total = draw(st.sampled_from(units.totals))
    assume(total < sum(layer.num_experts for layer in layers))
    kept = {layer.index: draw(st.integers(0, layer.num_experts)) for layer in layers}
    return units, count_budget(units, total), kept


@given(budgets())
def test_they_spend_the_budget_and_stay_within_the_constraints(case):
    units, budget, kept = case
    found = fit_counts(units, budget, kept)
    assert sum(found.removed) == budget.total
    assert all(map(range.__contains__, choices_of(units), found.removed))
    assert fit_counts(units, budget, found.counts) == found  # what fits stays as it is


@given(budgets())
def test_a_layer_moves_to_the_nearest_number_that_it_can_lose(case):
    units, _, _ = case
    for gone in range(-3, 18):
        # Of two equally near the smaller one, which keeps more.
        assert units.nearest([gone] * len(units.sizes)) == tuple(
            min(choices, key=lambda n: (abs(n - gone), n)) for choices in choices_of(units)
        )


@given(
    sizes=st.lists(st.integers(1, 5), min_size=1, max_size=3),
    groups=st.integers(1, 3),
    multiple=st.integers(1, 5),
    least=st.integers(0, 6),
    percent=st.integers(0, 99),
)
def test_a_sparsity_removes_the_most_that_can_go_at_or_below_it(
    sizes, groups, multiple, least, percent
):
    layers = tuple(MoELayer(n, size * groups, 1, groups, 1) for n, size in enumerate(sizes))
    # By definition: counts that the router, the groups, the multiple and the floor allow.
    possible = [
        {
            layer.num_experts - keep
            for keep in range(max(1, min(least, layer.num_experts)), layer.num_experts + 1)
            if keep % groups == 0 and keep % multiple == 0
        }
        for layer in layers
    ]
    assume(all(possible))
    exact = [layer.num_experts * percent // 100 for layer in layers]
    sums = set(map(sum, product(*possible)))

    def removed(schedule, limits):
        units = expert_units(layers, limits)
        budget = sparsity_budget(units, f"{percent}%", even=schedule == "uniform")
        try:
            return allocate(schedule, units, budget).removed
        except PlanError:
            return None

    limits = Constraints(multiple_of=multiple, floor=least)
    within = all(
        min(counts) <= gone <= max(counts) for counts, gone in zip(possible, exact, strict=True)
    )
    shares = (
        max(n for n in counts if n <= gone) for counts, gone in zip(possible, exact, strict=True)
    )
    assert removed("uniform", limits) == (tuple(shares) if within else None)
    late = removed("late", limits)
    if min(sums) <= sum(exact) <= max(sums):
        assert late is not None
        assert sum(late) == max(sum_ for sum_ in sums if sum_ <= sum(exact))
    else:
        assert late is None


def test_all_layers_give_in_proportion_to_their_experts():
    layers = (layer(0, 8), layer(1, 12), layer(2, 12))
    # By hand: nothing is removed yet and 16 must go; of 32 experts that is half of each layer.
    units = expert_units(layers)
    budget = count_budget(units, 16)
    assert fit_counts(units, budget, {0: 8, 1: 12, 2: 12}).keep == (4, 6, 6)
    # 20 are gone and 4 come back, as 8 : 12 : 12, which is 1, 1.5 and 1.5; of the two remainders
    # that are equal the lower layer has the first.
    assert fit_counts(units, budget, {0: 4, 1: 4, 2: 4}).keep == (5, 6, 5)


# 12 experts in 3 groups of 4; two groups are chosen, by the sum of their two best; top-3.
LAYER = MoELayer(5, 12, 3, num_groups=3, least_per_group=2)
REF = ModelRef("grouped", "cd" * 32)


@settings(deadline=None)
@given(seed=st.integers(0, 10_000), keep=st.sampled_from([6, 9, 12]))
def test_selection_is_the_best_subset_with_equal_groups(seed, keep):
    saliency = np.random.default_rng(seed).random(12)
    order = keeping_order(saliency[None, :], Grid((LAYER,)))[0]
    # By enumeration: the most salient set with equally many in each group.
    equal = (
        subset
        for subset in itertools.combinations(range(12), keep)
        if len({sum(e // 4 == group for e in subset) for group in range(3)}) == 1
    )
    wanted = max(equal, key=lambda subset: sum(saliency[e] for e in subset))
    assert tuple(sorted(order[:keep].tolist())) == wanted
    # Also from a ranking that knows nothing of groups, such as a file made elsewhere.
    plain = np.argsort(np.argsort(-saliency))
    table = pd.DataFrame({"layer": 5, "expert": range(12), "rank": plain})
    plan = select_experts(table, Allocation((LAYER,), (keep,)), model=REF)
    assert plan.kept[5] == wanted


@pytest.mark.parametrize(
    ("keep", "message"),
    [
        (2, r"keep 2 of 12 experts, but its router picks 3 per token"),
        (3, r"its router needs 2 in each of 3 groups; at most 50% can go\.$"),
        (7, r"3 groups, each of which must keep as many; nearest: 6 \(50% sparsity\) or 9 \(25%"),
        (10, r"nearest: 9 \(25% sparsity\) or 12 \(0% sparsity\)\.$"),
    ],
)
def test_a_number_that_the_groups_cannot_share_names_the_nearest(keep, message):
    with pytest.raises(PlanError, match=message) as caught:
        Allocation((LAYER,), (keep,))
    assert "\n" not in str(caught.value)


def test_unequal_groups_are_refused_with_the_number_that_works():
    check_kept(LAYER, (0, 1, 4, 5, 8, 9))
    with pytest.raises(PlanError, match=r"keeps 3, 1, 2 experts .* layer 5, .* here 2 in each"):
        check_kept(LAYER, (0, 1, 2, 4, 8, 9))


IN_GROUPS = {"n_group": 4, "topk_group": 2, "num_experts_per_tok": 6}


@pytest.mark.parametrize(
    ("model_type", "config", "groups"),
    [
        ("deepseek_v3", IN_GROUPS, (4, 3)),  # 3 * 2 >= 6
        (
            "deepseek_v3",
            IN_GROUPS | {"topk_group": 4, "num_experts_per_tok": 4},
            (4, 2),
        ),  # two best
        ("deepseek_v3", {"n_group": 1, "topk_group": 1, "num_experts_per_tok": 4}, (1, 1)),
        # Still two best.
        ("deepseek_v3", {"n_group": 1, "topk_group": 1, "num_experts_per_tok": 1}, (1, 2)),
        # Groups only where it routes by them.
        ("deepseek_v2", IN_GROUPS | {"topk_method": "greedy"}, (1, 1)),
        ("deepseek_v2", IN_GROUPS | {"topk_method": "group_limited_greedy"}, (4, 3)),
    ],
)
def test_what_a_group_must_keep_follows_from_the_router(model_type, config, groups):
    common = {"num_hidden_layers": 1, "first_k_dense_replace": 0, "n_routed_experts": 16}
    (layer,) = FAMILIES[model_type].layers({**common, **config})
    assert (layer.num_groups, layer.least_per_group) == groups
    assert layer.least_kept == max(config["num_experts_per_tok"], groups[0] * groups[1])


def test_statistics_of_models_without_groups_are_written_as_before():
    plain = MeasuredModel("m", "0" * 64, "olmoe", (MoELayer(0, 8, 2),))
    assert plain.to_json()["layers"] == [[0, 8, 2]]
    grouped = replace(plain, layers=(LAYER,))
    assert grouped.to_json()["layers"] == [[5, 12, 3, 3, 2]]
    for model in (plain, grouped):
        assert MeasuredModel.from_json(model.to_json()) == model
