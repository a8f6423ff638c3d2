"""Budgets of neurons: spent exactly, on the best, within bounds; brute force and properties."""

import itertools
import re
from dataclasses import replace
from fractions import Fraction
from math import floor, fsum

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from neuron_cases import select_neurons, units_of

from analysis.errors import PlanError
from analysis.families.base import MoELayer
from pruning.plan.budget import Budget, count_budget, rounding_note, sparsity_budget
from pruning.plan.constraints import Constraints
from pruning.plan.selection import kept_experts, neurons_left
from pruning.plan.units import NeuronScope, Units, neuron_units
from pruning.planning.make import neurons_removed
from tools.benchmarks.measured_schedule import in_parts

SCOPES = list(NeuronScope)


def scores_of(widths, seed, levels=None):
    """Random saliencies of layers 1, 4, ...; few different ones with `levels`."""
    generator = np.random.default_rng(seed)

    def draw(width):
        if levels:
            return generator.integers(0, levels, width).astype(float)
        return generator.normal(size=width)

    return {1 + 3 * row: tuple(map(draw, held)) for row, held in enumerate(widths)}


def kept_sets(scores, neurons):
    return {
        (layer, expert): set(neurons.get(layer, {}).get(expert, range(len(values))))
        for layer, held in scores.items()
        for expert, values in enumerate(held)
    }


def spent(scores, neurons):
    kept = kept_sets(scores, neurons)
    return sum(
        len(v) - len(kept[layer, e]) for layer, held in scores.items() for e, v in enumerate(held)
    )


def same_widths(data, step):
    """Layers of experts; with a step, of widths that it divides."""
    width = step * data.draw(st.integers(1, 12 // step))
    experts = data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=3))
    return [[width] * count for count in experts]


def subsets(scores, limits, layer, expert):
    """Every set of neurons that an expert may keep, from the words of the constraints alone."""
    values = scores[layer][expert]
    everything = set(range(len(values)))
    if expert in limits.dropped.get(layer, ()):
        return [set()]
    if layer in limits.protected or expert in limits.pinned.get(layer, ()):
        return [everything]
    return [
        set(kept)
        for count in range(len(values) + 1)
        for kept in itertools.combinations(sorted(everything), count)
        if count % limits.multiple_of == 0 and count >= min(limits.floor, len(values))
    ]


@pytest.mark.parametrize(
    "limits",
    [
        Constraints(),
        Constraints(multiple_of=2),
        Constraints(multiple_of=3, floor=2),
        Constraints(protected=frozenset({4})),
        Constraints(pinned={1: frozenset({0})}, multiple_of=2),
        Constraints(dropped={1: frozenset({1})}, floor=1),
    ],
    ids=["free", "pairs", "threes-floor", "protected", "pinned", "dropped"],
)
@settings(max_examples=12, deadline=None)
@given(
    seed=st.integers(0, 9999),
    levels=st.sampled_from([None, 3]),
    widths=st.sampled_from([[[4, 4], [4]], [[5, 3], [4]], [[3, 3], [3]]]),
)
def test_global_keeps_the_best_set_of_every_size(limits, seed, levels, widths):
    scores = scores_of(widths, seed, levels)
    keys = [(layer, e) for layer, held in scores.items() for e in range(len(held))]
    best: dict[int, float] = {}
    for choice in itertools.product(*(subsets(scores, limits, *key) for key in keys)):
        gone = sum(map(sum, widths)) - sum(map(len, choice))
        value = fsum(
            scores[k[0]][k[1]][n] for k, kept in zip(keys, choice, strict=True) for n in kept
        )
        best[gone] = max(best.get(gone, -np.inf), value)
    units = units_of(scores, NeuronScope.GLOBAL, limits)
    # Exactly those totals are possible of which a set exists.
    assert sorted(best) == list(units.totals)
    for total, wanted in best.items():
        budget = count_budget(units, total)
        neurons = neurons_left(units, neurons_removed(units, budget))
        kept = kept_sets(scores, neurons)
        assert spent(scores, neurons) == total
        assert all(kept[key] in subsets(scores, limits, *key) for key in keys)
        found = fsum(scores[layer][e][n] for (layer, e), ids in kept.items() for n in ids)
        assert found == pytest.approx(wanted, abs=1e-12)
    for total in set(range(sum(map(sum, widths)) + 1)) - set(best):
        with pytest.raises(PlanError):
            count_budget(units, total)


@settings(max_examples=60, deadline=None)
@given(
    data=st.data(),
    scope=st.sampled_from(SCOPES),
    step=st.sampled_from([1, 2, 4]),
    rho=st.fractions(0, 1, max_denominator=40).filter(lambda rho: rho < 1),
    seed=st.integers(0, 99),
)
def test_a_sparsity_is_rounded_down_to_a_multiple(data, scope, step, rho, seed):
    widths = same_widths(data, step)
    scores = scores_of(widths, seed, 3)
    units = units_of(scores, scope, Constraints(multiple_of=step))
    groups = {
        "expert": [w for held in widths for w in held],
        "layer": [sum(held) for held in widths],
        "global": [sum(map(sum, widths))],
    }[scope]
    exact = [floor(rho * size) for size in groups]
    below = [max(range(0, n + 1, step)) for n in exact]
    budget = sparsity_budget(units, rho)
    assert budget.total == sum(below)
    neurons = neurons_left(units, neurons_removed(units, budget))
    assert spent(scores, neurons) == budget.total
    for key, ids in kept_sets(scores, neurons).items():
        assert len(ids) % step == 0
        values = scores[key[0]][key[1]]
        gone = set(range(len(values))) - ids
        # Within an expert nothing that goes is above, or as high and before, what stays.
        assert all((values[i], -i) > (values[j], -j) for i, j in itertools.product(ids, gone))
    if scope is NeuronScope.EXPERT:
        assert len({len(ids) for ids in kept_sets(scores, neurons).values()}) == 1
    if step == 1:
        assert budget.total == sum(exact)


@settings(max_examples=40, deadline=None)
@given(
    data=st.data(),
    scope=st.sampled_from(SCOPES),
    step=st.sampled_from([1, 2, 4]),
    rhos=st.tuples(*[st.fractions(0, Fraction(39, 40), max_denominator=40)] * 2),
    seed=st.integers(0, 99),
)
def test_more_sparsity_keeps_a_subset(data, scope, step, rhos, seed):
    scores = scores_of(same_widths(data, step), seed, 3)
    limits = Constraints(multiple_of=step)
    less, more = (
        kept_sets(scores, select_neurons(scores, rho, scope, limits)) for rho in sorted(rhos)
    )
    assert all(more[key] <= less[key] for key in less)


def test_a_count_that_does_not_divide_differs_by_one_step():
    scores = scores_of([[8, 8], [8, 8]], 0)
    units = units_of(scores, NeuronScope.EXPERT, Constraints(multiple_of=2))
    removed = neurons_removed(units, count_budget(units, 14))
    # 3.5 each, in pairs: one pair each, and three experts lose a second.
    assert removed == (4, 4, 4, 2)
    with pytest.raises(PlanError, match=r"go 2 at a time here; nearest: 14 \(43.75%\) or 16 \(50%"):
        count_budget(units, 15)


def test_a_sparsity_that_is_no_multiple_says_what_went():
    units = units_of(scores_of([[64] * 3], 0), NeuronScope.EXPERT, Constraints(multiple_of=8))
    # floor(.36 * 64) = 23, below 24.
    budget = sparsity_budget(units, "36%")
    assert (budget.total, budget.floors) == (48, (16, 16, 16))
    sizes = units.by_pool.sizes
    assert rounding_note(budget, sizes, "neurons") == (
        "36% is 69 of 192 neurons, which cannot go exactly; rounded down, 48 went (25%)."
    )
    assert rounding_note(sparsity_budget(units, "25%"), sizes) is None
    assert rounding_note(count_budget(units, 8), sizes) is None


def test_a_dropped_expert_has_the_share_of_the_others():
    limits = Constraints(multiple_of=4, dropped={1: frozenset({0})})
    units = units_of(scores_of([[8, 8], [8, 8]], 0), NeuronScope.EXPERT, limits)
    # floor(.7 * 8) = 5, rounded down to 4 of each. Expert 0 loses 8, so one of the others none.
    budget = sparsity_budget(units, "70%")
    assert (budget.total, budget.floors) == (16, (4, 4, 4, 4))
    assert neurons_removed(units, budget) == (8, 4, 4, 0)


def test_rows_lose_whole_steps():
    with pytest.raises(ValueError, match=r"^3 and 34 are not whole steps of 8 apart$"):
        Units((40, 40), (3, 3), (35, 34), 8)


@pytest.mark.parametrize("share", ["50%", "97%", "99.9%"])
def test_an_expert_whose_width_is_no_multiple_may_be_kept_whole(share):
    limits = Constraints(multiple_of=4, pinned={1: frozenset({0})})
    units = units_of(scores_of([[10, 8]], 0), NeuronScope.EXPERT, limits)
    # Expert 0 keeps all 10, so expert 1 loses what both are to lose, and at most its 8.
    if share == "50%":
        assert neurons_removed(units, sparsity_budget(units, share)) == (0, 8)
    else:
        with pytest.raises(PlanError, match="at most 8"):
            sparsity_budget(units, share)


def test_the_parts_of_a_row_are_whole_steps():
    units = Units((100, 64), (3, 0), (99, 64), 4)
    # A fifth of 64 is 12.8, and a whole step below that 12: 3 + 96, 0 + 60.
    parts = in_parts(units, 5)
    assert (parts.step, parts.least, parts.most) == (12, (3, 0), (99, 60))
    assert in_parts(units, 99) == units


@pytest.mark.parametrize("floors", [(4, 4, 4), (4, 4, 4, 0), (4, 4, 4, 4, 0)])
def test_shares_of_other_rows_or_of_another_sum_are_not_taken(floors):
    units = units_of(scores_of([[8, 8], [8, 8]], 0), NeuronScope.EXPERT)
    assert neurons_removed(units, Budget(16, "count", "", floors)) == (4, 4, 4, 4)


LAYERS = (MoELayer(1, 4, 2), MoELayer(4, 4, 1))


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        (Constraints(multiple_of=16), "has 12 neurons and cannot keep a multiple of 16; .* is 12"),
        (Constraints(multiple_of=8, floor=9), "keep 9 or more in multiples of 8; .* works is 8"),
        (Constraints(fixed={1: 3}), "cannot be set or locked by hand"),
        (Constraints(locked=frozenset({1})), "cannot be set or locked by hand"),
        (Constraints(protected=frozenset({7})), "layer 7, which has no routed experts"),
        (Constraints(pinned={1: frozenset({4})}), r"expert 4 of layer 1, which has 4 experts"),
        (Constraints(dropped={1: frozenset({0, 1, 2})}), "drop at most 2"),
        (Constraints(protected=frozenset({4}), dropped={4: frozenset({0})}), "is protected"),
    ],
)
def test_constraints_that_cannot_be_met_are_one_line(limits, message):
    with pytest.raises(PlanError, match=message) as caught:
        kept_experts(LAYERS, limits)
        neuron_units({1: [12] * 4, 4: [12] * 4}, limits)
    assert "\n" not in str(caught.value)


def test_dropped_experts_leave_the_plan_whole():
    limits = Constraints(dropped={1: frozenset({2})})
    assert kept_experts(LAYERS, limits) == {1: (0, 1, 3)}
    grouped = (MoELayer(0, 6, 2, 2, 1),)
    with pytest.raises(PlanError, match="groups"):
        kept_experts(grouped, Constraints(dropped={0: frozenset({0})}))
    scores = scores_of([[3] * 4, [3] * 4], 0)
    units = units_of(scores, NeuronScope.GLOBAL, limits)
    removed = neurons_removed(units, count_budget(units, 5))
    assert removed[units.experts.index((1, 2))] == 3
    assert 2 not in neurons_left(units, removed, kept_experts(LAYERS, limits)).get(1, {})


def named(message):
    """What a message names: constraints to change, or numbers and sparsities to ask for instead."""
    if found := re.search(r"the largest (floor|multiple) that works is (\d+)", message):
        key = {"floor": "floor", "multiple": "multiple_of"}[found[1]]
        return {key: int(found[2])}, []
    shares = re.findall(r"(\d+) \(([\d.]+%|--remove \d+)\)", message.partition(", but ")[2])
    return {}, [(int(number), percent) for number, percent in shares]


@settings(max_examples=100, deadline=None)
@given(
    widths=st.lists(st.lists(st.integers(1, 20), min_size=1, max_size=4), min_size=1, max_size=3),
    scope=st.sampled_from(SCOPES),
    step=st.integers(1, 9),
    least=st.integers(0, 20),
    protected=st.sampled_from([(), (1,)]),
    asked=st.one_of(st.integers(0, 200), st.integers(0, 99).map(lambda number: f"{number}%")),
)
def test_what_an_error_names_works(widths, scope, step, least, protected, asked):
    scores = scores_of(widths, 0)
    limits = Constraints(multiple_of=step, floor=least, protected=frozenset(protected))

    def spend(limits, asked):
        units = units_of(scores, scope, limits)
        budget = (sparsity_budget if isinstance(asked, str) else count_budget)(units, asked)
        assert sum(neurons_removed(units, budget)) == budget.total
        return budget

    for _ in range(20):
        try:
            spend(limits, asked)
        except PlanError as error:
            changes, budgets = named(str(error))
            assert changes or budgets, str(error)
            limits = replace(limits, **changes)
            for number, percent in budgets:
                assert spend(limits, number).total == number
                if scope is NeuronScope.GLOBAL and percent != f"--remove {number}":
                    assert spend(limits, percent).total == number
            if budgets:
                return
        else:
            return
    pytest.fail("twenty repairs were not enough")


@settings(max_examples=60, deadline=None)
@given(
    data=st.data(),
    scope=st.sampled_from(SCOPES),
    step=st.sampled_from([1, 2, 3, 5]),
    seed=st.integers(0, 99),
)
def test_a_count_is_spent_exactly_under_constraints(data, scope, step, seed):
    widths = data.draw(
        st.lists(st.lists(st.integers(5, 13), min_size=1, max_size=4), min_size=1, max_size=3)
    )
    scores = scores_of(widths, seed)
    layer = data.draw(st.sampled_from(sorted(scores)))
    limits = Constraints(
        multiple_of=step,
        floor=data.draw(st.integers(0, 3)),  # below a multiple of every step in every width
        protected=frozenset(data.draw(st.sampled_from([(), (1,)]))),
        pinned={layer: frozenset({0})},
    )
    units = units_of(scores, scope, limits)
    totals = units.totals
    budget = count_budget(units, data.draw(st.sampled_from(totals)))
    removed = neurons_removed(units, budget)
    assert sum(removed) == budget.total
    kept = kept_sets(scores, neurons_left(units, removed))
    for (index, expert), ids in kept.items():
        width = len(scores[index][expert])
        if index in limits.protected or (index, expert) == (layer, 0):
            assert len(ids) == width
        else:
            assert len(ids) % step == 0
            assert len(ids) >= min(limits.floor, width)


@settings(max_examples=40, deadline=None)
@given(data=st.data(), scope=st.sampled_from(SCOPES), seed=st.integers(0, 99))
def test_increasing_maps_change_nothing_and_ties_are_stable(data, scope, seed):
    scores = scores_of(same_widths(data, 1), seed, 2)
    rho = Fraction(data.draw(st.integers(0, 19)), 20)
    mapped = {layer: tuple(np.exp(v) + 7 for v in held) for layer, held in scores.items()}
    found = select_neurons(scores, rho, scope)
    assert select_neurons(mapped, rho, scope) == found
    same = {layer: tuple(np.zeros_like(v) for v in held) for layer, held in scores.items()}
    kept = kept_sets(same, select_neurons(same, rho, scope))
    # Of equals the first stay, in each expert and in the order of those who compete.
    assert all(ids == set(range(len(ids))) for ids in kept.values())
    units = units_of(same, scope)
    for members in (units.experts[rows] for rows in units.runs):
        missing = [len(same[layer][e]) - len(kept[layer, e]) for layer, e in members]
        first = next((i for i, gone in enumerate(missing) if gone), len(missing))
        assert all(
            gone == len(same[layer][e])
            for gone, (layer, e) in list(zip(missing, members, strict=True))[first + 1 :]
        )
