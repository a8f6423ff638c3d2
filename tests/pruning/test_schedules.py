"""Schedules: exact budgets, bounds, ties, and brute force on cases small enough to enumerate."""

import itertools
from dataclasses import replace
from math import fsum

import numpy as np
import pytest
from allocations import SPENDERS, evidence_in, patterned, ranked_globally, ranking_of
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from analysis.errors import PlanError
from analysis.families.base import MoELayer
from analysis.model.moe_model import ModelRef
from analysis.ranking.experts import fold_ranking
from pruning.plan.budget import count_budget, sparsity_budget, uniform_neighbours
from pruning.plan.constraints import Constraints
from pruning.plan.selection import select_experts
from pruning.plan.units import expert_units
from pruning.schedules import SCHEDULES, Evidence, allocate, allocation_notes, side_by_side, uniform
from pruning.spec.spec import spec_of

FOUR = tuple(MoELayer(index, 8, 2) for index in (1, 2, 4, 5))
REF = ModelRef("some/model", "ab" * 32)


def grid_of(layers, seed, levels=None):
    """Random saliencies, few different ones with `levels`; NaN where there is no expert."""
    generator = np.random.default_rng(seed)
    widest = max(layer.num_experts for layer in layers)
    shape = (len(layers), widest)
    grid = generator.integers(0, levels, shape) / 4 if levels else generator.normal(size=shape)
    for row, layer in enumerate(layers):
        grid[row, layer.num_experts :] = np.nan
    return grid.astype(float)


layers_of_models = st.lists(
    st.tuples(st.integers(1, 3), st.integers(1, 4), st.integers(1, 3)), min_size=1, max_size=6
).map(
    # (top_k, experts beyond it, gap to the next sparse layer)
    lambda rows: tuple(
        MoELayer(sum(row[2] for row in rows[: position + 1]), top_k + more, top_k)
        for position, (top_k, more, _) in enumerate(rows)
    )
)
grouped_layers = st.builds(
    lambda count, groups, size: tuple(
        MoELayer(index, groups * size, 2, groups, 1 if groups == 1 else 2)
        for index in range(1, count + 1)
    ),
    st.integers(1, 4),
    st.integers(1, 3),
    st.integers(2, 5),
)


def test_a_count_that_does_not_divide_says_which_sizes_do():
    budget = count_budget(expert_units(FOUR), 10)
    made = uniform(FOUR, budget)
    assert made.removed == (3, 3, 2, 2)
    (first, second) = allocation_notes("uniform", expert_units(FOUR), budget, made)
    assert "10 experts do not divide over 4 layers, so layers differ by 1" in first
    assert "remove 8 or 12" in first
    assert "trust_remote_code" in second
    units = expert_units(FOUR)
    assert allocation_notes("uniform", units, count_budget(units, 8), uniform(FOUR, "25%")) == ()


def test_sizes_that_divide_are_no_advice_where_a_layer_is_held():
    # With layer 1 protected, ten go from three layers: no count in all four is near.
    units = expert_units(FOUR, Constraints(protected=frozenset({1})))
    budget = count_budget(units, 10)
    made = allocate("uniform", units, budget)
    assert made.removed[[layer.index for layer in FOUR].index(1)] == 0
    notes = allocation_notes("uniform", units, budget, made)
    assert not [note for note in notes if "divide" in note]


def test_a_sparsity_needs_no_advice_on_sizes():
    # floor(.45 * 8) + floor(.45 * 5) = 5, which no multiple of 1/8 gives.
    layers = (MoELayer(0, 8, 2), MoELayer(1, 5, 2))
    budget = sparsity_budget(expert_units(layers), "45%")
    (note,) = allocation_notes("uniform", expert_units(layers), budget, uniform(layers, budget))
    assert "Layers keep from 3 to 5 experts" in note


def test_nearest_uniform_sizes_are_ones_that_the_router_allows():
    assert uniform_neighbours(FOUR, 8) == (8,)
    assert uniform_neighbours(FOUR, 1) == (0, 4)
    assert uniform_neighbours(FOUR, 31) == (24,)
    # Groups of 4 of which each must keep two: 0, 3 or 6 experts of a layer.
    grouped = (MoELayer(0, 12, 3, 3, 2), MoELayer(1, 12, 3, 3, 2))
    assert uniform_neighbours(grouped, 7) == (6, 12)


@settings(max_examples=60)
@given(layers=grouped_layers, count=st.integers(0, 40), seed=st.integers(0, 99), data=st.data())
def test_constraints_hold_for_every_schedule(layers, count, seed, data):
    layer = data.draw(st.sampled_from(layers))
    other = data.draw(st.sampled_from(layers))
    pin, drop = data.draw(st.permutations(range(layer.num_experts)))[:2]
    limits = Constraints(
        multiple_of=data.draw(st.sampled_from([1, 2])),
        protected=frozenset({other.index} if other != layer else ()),
        pinned={layer.index: frozenset({pin})},
        dropped={layer.index: frozenset({drop})},
    )
    try:
        units = expert_units(layers, limits)
    except PlanError:
        return
    assume(count < len(units.totals))
    total = units.totals[count]
    grid = grid_of(layers, seed)
    for name in SPENDERS:
        made = allocate(name, units, count_budget(units, total), evidence_in(grid))
        assert sum(made.removed) == total
        plan = select_experts(ranking_of(layers, grid), made, model=REF, constraints=limits)
        assert pin in plan.kept[layer.index]
        assert drop not in plan.kept[layer.index]
        for moe_layer, ids in zip(layers, plan.kept.values(), strict=True):
            if moe_layer.index in limits.protected:
                assert len(ids) == moe_layer.num_experts
            else:
                assert len(ids) % limits.multiple_of == 0
            size = moe_layer.num_experts // moe_layer.num_groups
            in_group = [sum(e // size == g for e in ids) for g in range(moe_layer.num_groups)]
            assert len(set(in_group)) == 1


@settings(max_examples=30)
@given(
    layers=layers_of_models,
    percents=st.tuples(st.integers(0, 99), st.integers(0, 99)),
    seed=st.integers(0, 99),
    levels=st.sampled_from([None, 3]),
)
def test_more_sparsity_keeps_a_subset_where_the_schedule_says_so(layers, percents, seed, levels):
    grid, units = grid_of(layers, seed, levels), expert_units(layers)
    for name in (name for name in SPENDERS if SCHEDULES[name].is_nested):
        try:
            budgets = [sparsity_budget(units, f"{percent}%") for percent in sorted(percents)]
            made = [allocate(name, units, budget, evidence_in(grid)) for budget in budgets]
        except PlanError:
            continue
        ranking = ranking_of(layers, grid)
        more, less = (select_experts(ranking, one, model=REF).kept for one in made)
        assert all(set(less[layer]) <= set(more[layer]) for layer in more)


def test_a_larger_budget_by_largest_remainders_may_take_less_of_a_layer():
    """Weights 5 to 1: of 7 the last has 7/15, the third largest remainder; of 8 it has 8/15."""
    layers = tuple(MoELayer(index, 8, 1) for index in range(1, 6))
    units = expert_units(layers)
    seven, eight = (
        patterned(layers, count_budget(units, count), "early").removed for count in (7, 8)
    )
    # 7: 7/3 28/15 21/15 14/15 7/15. 8: 8/3 32/15 24/15 16/15 8/15, of which two are rounded up.
    assert (seven, eight) == ((2, 2, 1, 1, 1), (3, 2, 2, 1, 0))
    # By measured costs 2 + 0 go of two, and 0 + 3 of three: see tests/golden/test_schedules.py.
    patterns = ("early", "middle", "late", "measured")
    assert not any(SCHEDULES[name].is_nested for name in patterns)


@settings(max_examples=20)
@given(seed=st.integers(0, 999), percent=st.sampled_from([25, 50, 62]))
def test_the_order_of_rows_and_equal_values_change_nothing(seed, percent):
    grid = grid_of(FOUR, seed, levels=3)
    ranking = ranking_of(FOUR, grid)
    shuffled = ranking.sample(frac=1, random_state=seed)
    np.testing.assert_array_equal(fold_ranking(shuffled, FOUR), grid)
    budget = sparsity_budget(expert_units(FOUR), f"{percent}%")
    for name in ("global", "global-rescaled", "frequency"):
        first, second = (
            allocate(name, expert_units(FOUR), budget, evidence_in(folded))
            for folded in (fold_ranking(ranking, FOUR), fold_ranking(shuffled, FOUR))
        )
        assert first == second
        assert select_experts(ranking, first, model=REF) == select_experts(
            shuffled, second, model=REF
        )


def feasible_removals(layers, total, limits):
    """All sets of removed experts, by layer, that are allowed and sum to `total`."""
    choices = []
    for layer in layers:
        everyone, size = range(layer.num_experts), layer.num_experts // layer.num_groups
        options = []
        for count in range(layer.num_experts - layer.least_kept + 1):
            for gone in map(set, itertools.combinations(everyone, count)):
                stays = set(everyone) - gone
                in_group = {sum(e // size == g for e in stays) for g in range(layer.num_groups)}
                if (
                    len(in_group) == 1
                    and not gone & limits.pinned.get(layer.index, frozenset())
                    and limits.dropped.get(layer.index, frozenset()) <= gone
                    and (len(stays) % limits.multiple_of == 0)
                ):
                    options.append(gone)
        choices.append(options)
    return [pick for pick in itertools.product(*choices) if sum(map(len, pick)) == total]


TWO = (MoELayer(0, 5, 2), MoELayer(2, 4, 1))


@pytest.mark.parametrize(
    ("layers", "limits"),
    [
        (TWO, Constraints()),
        (TWO, Constraints(pinned={0: frozenset({1, 4})})),
        (TWO, Constraints(dropped={2: frozenset({3})})),
        (TWO, Constraints(pinned={0: frozenset({2})}, dropped={0: frozenset({4})})),
        ((MoELayer(1, 6, 2), MoELayer(3, 6, 2)), Constraints(multiple_of=2)),
        ((MoELayer(1, 6, 2, 2, 1), MoELayer(3, 6, 2, 2, 1)), Constraints()),
        (
            (MoELayer(1, 6, 2, 2, 1), MoELayer(3, 6, 2, 2, 1)),
            Constraints(pinned={1: frozenset({0, 1})}),
        ),
    ],
    ids=["free", "pinned", "dropped", "both", "multiples", "groups", "groups-pinned"],
)
@settings(max_examples=25)
@given(seed=st.integers(0, 9999), total=st.integers(1, 7), levels=st.sampled_from([None, 3]))
def test_global_keeps_the_best_set_of_all(layers, limits, seed, total, levels):
    grid = grid_of(layers, seed, levels)
    options = feasible_removals(layers, total, limits)
    if not options:
        with pytest.raises(PlanError):
            ranked_globally(layers, count_budget(expert_units(layers), total), grid, limits)
        return

    def lost(pick):
        return fsum(grid[row, e] for row, gone in enumerate(pick) for e in gone)

    made = ranked_globally(layers, count_budget(expert_units(layers), total), grid, limits)
    plan = select_experts(ranking_of(layers, grid), made, model=REF, constraints=limits)
    gone = [set(range(layer.num_experts)) - set(plan.kept[layer.index]) for layer in layers]
    assert tuple(gone) in options
    assert lost(gone) == pytest.approx(min(map(lost, options)), abs=1e-12)


def spend(name, count, limits, grid=None):
    seen = grid_of(FOUR, 0) if grid is None else grid
    units = expert_units(FOUR, limits)
    return allocate(name, units, count_budget(units, count), evidence_in(seen)).removed


def test_uniform_around_a_protected_layer_keeps_the_total():
    budget = sparsity_budget(expert_units(FOUR), "25%")  # 8 experts, 2 a layer
    limits = Constraints(protected=frozenset({2}))
    made = uniform(FOUR, budget, limits)
    assert made.removed == (3, 0, 3, 2)
    notes = allocation_notes("uniform", expert_units(FOUR, limits), budget, made)
    assert "would remove 2 more from layer 2 and as many fewer from layers 1,4." in notes[0]


def test_fixed_layers_and_locked_ones():
    grid = np.arange(32, dtype=float).reshape(4, 8)  # the first layers go first
    assert spend("global", 10, Constraints(), grid) == (6, 4, 0, 0)
    assert spend("global", 10, Constraints(fixed={5: 4}), grid) == (6, 0, 0, 4)
    # Layer 2 keeps what it had, so the layers that are left give.
    held = Constraints(fixed={5: 4}, locked=frozenset({2}))
    assert spend("global", 10, held, grid) == (2, 4, 0, 4)
    assert spend("uniform", 8, Constraints(fixed={1: 2}), grid) == (6, 1, 1, 0)
    assert spend("late", 10, Constraints(fixed={5: 8}), grid) == (2, 3, 5, 0)


@pytest.mark.parametrize(
    ("limits", "count", "message"),
    [
        ({"multiple_of": 0}, 0, "give 1 or more"),
        ({"multiple_of": 4}, 10, r"nearest: 8 \(--remove 8\) or 12 \(--remove 12\)"),
        ({"multiple_of": 16}, 4, "none of these is a multiple of 16; .* multiple of 8"),
        ({}, 25, r"removes 25 \(78.13%\) of 32 experts, but at most 24 \(75%\) can go"),
        ({}, 32, "give a number from 0 to 31"),
        ({"protected": frozenset({1, 2})}, 13, r"at most 12 \(--remove 12\) can go"),
        ({"protected": frozenset({3})}, 1, r"name layer 3, .* sparse layers are 1-2,4-5"),
        ({"pinned": {1: frozenset({8})}}, 1, r"expert 8 of layer 1, which has 8 experts \(0\.\.7"),
        ({"pinned": {1: frozenset(range(7))}}, 20, r"at most 19 \(--remove 19\) can go"),
        ({"dropped": {1: frozenset(range(7))}}, 8, "at most 1 can stay; drop at most 6"),
        ({"dropped": {4: frozenset({0, 1})}}, 1, r"but at least 2 \(--remove 2\) must go"),
        ({"pinned": {1: frozenset({3})}, "dropped": {1: frozenset({3})}}, 1, "both pinned and"),
        ({"protected": frozenset({1}), "dropped": {1: frozenset({3})}}, 1, "is protected, so its"),
        ({"protected": frozenset({1}), "fixed": {1: 4}}, 1, "keeps 8 experts and not 4"),
        ({"fixed": {1: 1}}, 8, "cannot keep 1 of 8 experts here; nearest: 2"),
        ({"fixed": {1: 5}, "multiple_of": 2}, 8, "nearest: 4 or 6"),
    ],
)
def test_what_cannot_be_done_names_the_nearest_that_can(limits, count, message):
    with pytest.raises(PlanError, match=message) as caught:
        spend("global", count, Constraints(**limits))
    assert "\n" not in str(caught.value)


def test_a_plan_has_no_room_for_more_pins_than_it_keeps():
    limits = Constraints(pinned={1: frozenset({5, 6, 7})})
    ranking = ranking_of(FOUR, grid_of(FOUR, 0))
    with pytest.raises(PlanError, match="no room for its 3 pinned and 0 dropped ones"):
        select_experts(ranking, uniform(FOUR, "75%"), model=REF, constraints=limits)
    kept = select_experts(ranking, uniform(FOUR, "50%"), model=REF, constraints=limits).kept
    assert {5, 6, 7} < set(kept[1])


def test_side_by_side_is_every_schedule_that_can():
    grid = grid_of(FOUR, 3)
    units = expert_units(FOUR)
    budget = sparsity_budget(units, "30%")
    table, refused = side_by_side(units, budget, Evidence(saliency=grid))
    able = [name for name, schedule in SCHEDULES.items() if schedule.needs <= {"saliency"}]
    assert list(dict.fromkeys(table["schedule"])) == able
    assert refused == {}
    assert set(table.groupby("schedule")["removed"].sum()) == {8}
    assert (table["kept"] + table["removed"]).eq(8).all()
    for name, rows in table.groupby("schedule"):
        assert tuple(rows["kept"]) == allocate(str(name), units, budget, Evidence(grid)).keep
    limits = Constraints(multiple_of=4)
    units = expert_units(FOUR, limits)
    table, refused = side_by_side(units, sparsity_budget(units, "60%"), Evidence(saliency=grid))
    assert refused == {}
    assert set(table.groupby("schedule")["removed"].sum()) == {16}
    assert set(table.loc[table["schedule"] == "late", "removed"]) <= {0, 4}


@pytest.mark.parametrize("name", SCHEDULES)
def test_a_schedule_that_reads_tokens_keeps_the_corpora_of_a_criterion_of_weights(
    name, monkeypatch
):
    another = replace(SCHEDULES[name], name="another")
    monkeypatch.setitem(SCHEDULES, another.name, another)
    for schedule in (name, another.name):
        fields = {"schedule_file": "a.csv"} if name == "file" else {"schedule": schedule}
        spec = spec_of(criterion="aimer", sparsity="50%", **fields)
        assert spec.reads_text == (name == "frequency")
