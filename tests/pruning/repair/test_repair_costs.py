"""What a repair is expected to cost before it begins, for pages that run no model."""

from types import SimpleNamespace

import pytest
from exports import keeping

from analysis.model.layer_costs import layer_costs
from analysis.model.opening import load_model_index
from analysis.progress import cost
from pruning.planning.searches import start_seconds
from pruning.repair.costs import fit_costs, repair_costs, repair_seconds

TOKENS, SPEED = 4096, 500.0


@pytest.fixture
def model(checkpoint):
    return load_model_index(str(checkpoint("olmoe").path))


def runs(*speeds):
    return [
        SimpleNamespace(
            manifest=SimpleNamespace(made={"tokens_per_second": speed} if speed else {})
        )
        for speed in speeds
    ]


def test_two_models_run_then_the_repaired_one_and_each_layer_is_fitted(model):
    plan = keeping(model, (1, 3, 4))
    costs, layers = repair_costs(model, plan, TOKENS), layer_costs(model)
    forward = sum(layers.active[layer] for layer in range(model.depth)) * TOKENS
    for kind in "observe", "run repaired":
        assert costs[kind] == pytest.approx(cost(kind, forward))
    by_layer = [fit_costs(model, layer.index, 3, TOKENS) for layer in model.layers]
    fits = [costs for stages in by_layer for costs in stages.values()]
    for kind in "fit", "invert":
        assert costs[kind] == pytest.approx(sum(part.get(kind, 0) for part in fits))
    fewer = repair_costs(model, keeping(model, (1, 3)), TOKENS)
    assert fewer["invert"] == pytest.approx(2 / 3 * costs["invert"])
    assert fewer["observe"] == costs["observe"]


def test_seconds_follow_from_these_costs_by_the_pace_of_calibrations(model):
    plan = keeping(model, (1, 3, 4))
    start = start_seconds(model.checkpoint.nbytes)
    low, high = (
        seconds - first
        for seconds, first in zip(
            repair_seconds(model, plan, TOKENS, runs(0, SPEED, SPEED / 2)), start, strict=True
        )
    )
    costs, layers = repair_costs(model, plan, TOKENS), layer_costs(model)
    products = sum(costs[kind] for kind in ("observe", "run repaired", "fit", "invert"))
    forward = cost("multiply", sum(layers.active[layer] for layer in range(model.depth)))
    assert high == pytest.approx(products / forward / SPEED)
    assert low == pytest.approx(high / 5)
    assert repair_seconds(model, plan, TOKENS, runs(0)) is None
    assert repair_seconds(model, plan, TOKENS, []) is None
