"""Experts and bits of every layer: the cheapest within a size, against every combination."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from analysis.errors import PlanError
from analysis.model.opening import load_model_index
from families.configs import BY_NAME
from families.tiny_models import tiny_model
from pruning.plan.plan import keep_all
from pruning.plan.selection import Allocation
from pruning.plan.sizes import weight_bytes
from pruning.planning import layer_options as module
from pruning.planning.layer_options import (
    LayerOption,
    bytes_besides,
    cheapest,
    cheapest_alike,
    cost_of,
    layer_options,
    plan_with_bits,
)

FORMATS = ("16", "5", "2")


def random_layers(seed, depth=3, count=6, most=40):
    drawn = np.random.default_rng(seed)
    return [
        [
            LayerOption(number, "4", int(drawn.integers(0, most)), float(drawn.normal()))
            for number in range(count)
        ]
        for _ in range(depth)
    ]


def size(options):
    return sum(option.nbytes for option in options)


def least_cost(layers, nbytes):
    """By trying all; None if none fits."""
    costs = [sum(o.cost for o in row) for row in product(*layers) if size(row) <= nbytes]
    return min(costs, default=None)


@pytest.mark.parametrize("seed", range(6))
def test_the_cheapest_is_that_of_all_combinations(seed):
    layers = random_layers(seed)
    for nbytes in range(0, 125, 3):
        best = least_cost(layers, nbytes)
        if best is None:
            with pytest.raises(PlanError, match="the smallest takes"):
                cheapest(layers, nbytes)
            continue
        chosen = cheapest(layers, nbytes)
        assert size(chosen) <= nbytes
        assert cost_of(chosen) == pytest.approx(best)
        assert all(option in options for option, options in zip(chosen, layers, strict=True))


@pytest.mark.parametrize("seed", range(3))
def test_coarse_steps_hold_the_size_and_lose_less_than_a_step_a_layer(seed, monkeypatch):
    layers = random_layers(seed, most=10_007)
    monkeypatch.setattr(module, "_MOST_CELLS", 300)
    step = 3 * 3 * 10_007 // 300 + 1
    for nbytes in range(9_000, 25_000, 1_000):
        chosen = cheapest(layers, nbytes)
        assert size(chosen) <= nbytes
        exact, smaller = least_cost(layers, nbytes), least_cost(layers, nbytes - 4 * step)
        assert cost_of(chosen) >= exact - 1e-12
        assert smaller is None or cost_of(chosen) <= smaller + 1e-12
        # What the steps leave unused is too little for a better option of any layer.
        room = nbytes - size(chosen)
        for own, options in zip(chosen, layers, strict=True):
            assert own.cost == min(o.cost for o in options if o.nbytes <= own.nbytes + room)


def test_bytes_of_options_are_those_of_whole_plans(tmp_path):
    tiny_model(BY_NAME["olmoe"]).save_pretrained(tmp_path)
    model, drawn = load_model_index(str(tmp_path)), np.random.default_rng(0)
    original = keep_all(model)

    def plan_of(removed):
        allocation = Allocation(
            model.layers,
            tuple(layer.num_experts - n for layer, n in zip(model.layers, removed, strict=True)),
        )
        kept = {layer: tuple(range(count)) for layer, count in allocation.counts.items()}
        return replace(original, kept=kept)

    removal = [{0: 0.0, 1: drawn.random(), 3: 1 + drawn.random()} for _ in model.layers]
    removal[0].pop(3)  # a layer that may lose less
    in_bits = [dict(zip(FORMATS, (0, *drawn.random(2)), strict=True)) for _ in model.layers]
    every = layer_options(model, plan_of, removal, in_bits)
    assert [len(options) for options in every] == [3 * len(costs) for costs in removal]
    # Every combination as a plan, by the calculator of sizes.
    costs = {}
    for row in product(*every):
        plan = plan_with_bits(model, plan_of([option.removed for option in row]), row)
        costs[row] = (weight_bytes(model, plan), cost_of(row))
    original_row = tuple(options[0] for options in every)
    assert costs[original_row][0] == model.checkpoint.nbytes
    besides = bytes_besides(model, original)
    sizes = {size(row) + besides == nbytes for row, (nbytes, _) in costs.items()}
    assert sizes == {True}  # the original has a head of its own here, as exports do
    smallest = min(nbytes for nbytes, _ in costs.values())
    for nbytes in np.linspace(smallest, model.checkpoint.nbytes, 9).astype(int).tolist():
        chosen = cheapest(every, nbytes, besides)
        best = min(cost for size_, cost in costs.values() if size_ <= nbytes)
        assert cost_of(chosen) == pytest.approx(best)
        alike = cheapest_alike(every, nbytes, besides)
        same = [
            cost
            for row, (size_, cost) in costs.items()
            if size_ <= nbytes and len({(o.removed, o.bits) for o in row}) == 1
        ]
        assert (None if alike is None else cost_of(alike)) == min(same, default=None)


def test_layers_of_a_given_plan_are_alike_in_bits():
    layers = [
        [LayerOption(gone, "16", 9, 0.0), LayerOption(gone, "4", 3, cost)]
        for gone, cost in ((1, 0.5), (3, 0.25))
    ]
    alike = cheapest_alike(layers, 7)
    assert alike == (layers[0][1], layers[1][1])
