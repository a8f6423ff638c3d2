"""The predicted frontier of a small model whose router chooses among groups."""

import numpy as np
import pytest

from analysis.drain import drain
from analysis.model.opening import load_model_index
from analysis.stats.store import stats_store
from families.configs import BY_NAME
from families.tiny_models import tiny_model
from pruning.measures.curves import Curve, Curves, Sensitivity
from pruning.measures.sum_error import SumError
from pruning.planning.frontier import BEST, UNIFORM, frontier_table
from pruning.planning.measured import order_of, without_budget
from pruning.requests.plan import SpecRequest
from pruning.spec.spec import spec_of
from pruning.study import Study

# Layers 1 and 2 of 12 experts in three groups: of each, three go at a time.
CASE = BY_NAME["deepseek_v3-groups"]


@pytest.fixture
def selection(tmp_path):
    tiny_model(CASE).save_pretrained(tmp_path / "model")
    model = load_model_index(str(tmp_path / "model"))
    spec = spec_of(criterion="random", sparsity="50%", multiple_of=3, protect="1")
    request = SpecRequest(model=str(tmp_path / "model"), plan=spec)
    return drain(Study.of(request, model, stats_store(tmp_path / "stats")).rank(request.plan))


def test_budgets_are_steps_of_the_groups_and_the_best_is_no_worse(selection, tmp_path):
    free = without_budget(selection)
    order = order_of(free, free.spec)
    assert order.ref == order_of(selection, selection.spec).ref
    most = order.units.most[0]
    costs = [np.arange(most + 1.0) ** 2, np.arange(most + 1.0)]
    by_sample = tuple(np.stack([cost, cost], axis=1) for cost in costs)
    layers = tuple(Curve(np.arange(len(cost)), cost) for cost in costs)
    curves = Curves(layers, {}, corpus="a", samples=2, by_sample=by_sample)
    sensitivity = Sensitivity((curves,), "nll")
    table = frontier_table(free, SumError(sensitivity, {}))
    best, even = (table[table["series"] == name].set_index("removed") for name in (BEST, UNIFORM))
    assert set(best.index) == set(range(0, 2 * most + 1, 3))
    every = {
        total: min(
            costs[0][one] + costs[1][total - one]
            for one in range(0, most + 1, 3)
            if 0 <= total - one <= most
        )
        for total in best.index
    }
    assert best["predicted"].to_dict() == pytest.approx(every)
    assert (even["predicted"] >= best["predicted"] - 1e-9).all()
    assert even.loc[6, "predicted"] == pytest.approx(costs[0][3] + costs[1][3])
    assert table["measured"].isna().all()
    learned = frontier_table(free, SumError(sensitivity, {(3, 3): {"a": 24.0}}))
    assert learned["measured"].dropna().tolist() == [24.0]
    near = learned[learned["series"] == UNIFORM].set_index("removed")
    # Twice its sum of 12: others are corrected, but not this one by itself.
    assert near.loc[6, "predicted"] == pytest.approx(12)
    assert near.loc[9, "predicted"] > 1.3 * even.loc[9, "predicted"]
