"""How much of a repair is left, as its layers are fitted or gain nothing by a fit."""

from types import SimpleNamespace

import numpy as np
import pytest
from exports import keeping

from analysis.model.opening import load_model_index
from pruning.repair.costs import fit_costs
from pruning.repair.effort import CHOOSING, FITTING, INVERSES, PRODUCTS, TRIAL, TRIAL_INVERSES
from pruning.repair.work import Work

TOKENS = 24


@pytest.fixture
def model(checkpoint):
    return load_model_index(str(checkpoint("olmoe").path))


def work_on(model, known=None):
    """`known`: layer -> whether an earlier run gained by its fit."""
    batch = SimpleNamespace(tokens=SimpleNamespace(mask=np.ones((2, TOKENS // 2))))
    return Work(model, keeping(model, (1, 3, 4)), [batch], (known or {}).get, 0)


def fitting(model, layers, stages=FITTING):
    """What these stages of the fits of some layers cost, by kind."""
    sums = dict.fromkeys(("fit", "invert"), 0.0)
    for layer in layers:
        costs = fit_costs(model, layer, 3, TOKENS)
        for stage in stages:
            for kind, amount in costs[stage].items():
                sums[kind] += amount
    return sums


def total(work):
    return {kind: work.whole.total[kind] for kind in ("fit", "invert")}


def done(work):
    return {kind: work.whole.done[kind] for kind in ("fit", "invert")}


def test_as_many_layers_to_come_are_fitted_as_of_those_so_far(model):
    work, layers = work_on(model), [layer.index for layer in model.layers]
    choosing = fitting(model, layers, CHOOSING)

    def expected(share, of):
        pairs = fitting(model, of).items()
        return pytest.approx({kind: choosing[kind] + share * cost for kind, cost in pairs})

    assert total(work) == expected(1, layers)
    work.reached(layers[0], TRIAL, 1.0)
    work.gained_nothing(layers[0])
    assert total(work) == pytest.approx(choosing)  # none is fitted
    assert done(work) == pytest.approx(fitting(model, layers[:1], CHOOSING))
    work.fitted(layers[1])
    one, rest = fitting(model, layers[1:2]), fitting(model, layers[2:])
    half = {kind: choosing[kind] + one[kind] + rest[kind] / 2 for kind in choosing}
    assert total(work) == pytest.approx(half)
    for layer in layers[2:]:
        work.fitted(layer)
    assert total(work) == expected(1, layers[1:]) == done(work)


def test_a_layer_that_is_being_fitted_gains_whatever_those_before_did(model):
    work, (first, *_, last) = work_on(model), [layer.index for layer in model.layers]
    for layer in model.layers[:-1]:
        work.reached(layer.index, TRIAL, 1.0)
        work.gained_nothing(layer.index)
    assert first != last
    work.reached(last, INVERSES, 0.5)
    kinds = fitting(model, [last])
    choosing = fitting(model, [layer.index for layer in model.layers], CHOOSING)
    assert total(work) == pytest.approx({kind: choosing[kind] + kinds[kind] for kind in kinds})
    assert all(done(work)[kind] <= total(work)[kind] for kind in kinds)


def test_what_a_choice_did_not_need_is_not_done(model):
    """Where nothing is lost, no damping is tried."""
    work, layer = work_on(model), model.layers[0].index
    work.reached(layer, PRODUCTS, 1.0)
    before = done(work)
    work.gained_nothing(layer)
    assert done(work) == before
    others = fitting(model, [one.index for one in model.layers[1:]], CHOOSING)
    assert total(work) == pytest.approx({kind: before[kind] + others[kind] for kind in others})


@pytest.mark.parametrize("has_gained", [True, False])
def test_layers_that_an_earlier_run_tried_say_what_to_expect_too(model, has_gained):
    layers = [layer.index for layer in model.layers]
    work = work_on(model, {layers[0]: has_gained})
    stages = CHOOSING + FITTING if has_gained else CHOOSING
    assert done(work) == pytest.approx(fitting(model, layers[:1], stages))
    assert total(work) == pytest.approx(fitting(model, layers, stages))


def test_a_stage_counts_by_its_share_and_those_before_it_as_done(model):
    work, layer = work_on(model), model.layers[0].index
    costs = fit_costs(model, layer, 3, TOKENS)
    work.reached(layer, PRODUCTS, 0.5)
    assert done(work) == pytest.approx({"fit": costs[PRODUCTS]["fit"] / 2, "invert": 0.0})
    for share in (0.25, 0.75):
        work.reached(layer, TRIAL_INVERSES, share)
    inverted = 0.75 * costs[TRIAL_INVERSES]["invert"]
    assert done(work) == pytest.approx({"fit": costs[PRODUCTS]["fit"], "invert": inverted})
