"""Memory that a dry run says, a repair's as it estimates itself; and what a repair makes of it."""

import numpy as np
import pytest

from analysis.calibration.blocks import layer_sizes
from analysis.calibration.loading import CalibrationSettings, Placement
from analysis.corpora.sequences import TokenSequences
from analysis.model.opening import load_model_index
from pruning.plan.plan import keep_all
from pruning.repair.estimate import FitSizes, estimate_repair, memory_of_repair
from pruning.requests.evaluation import EvaluateRequest
from pruning.requests.repair import DEFAULT_REPAIR_TOKENS
from pruning.spec.base import validated
from pruning.tasks.memory import Running


def test_an_evaluation_with_repairs_takes_what_the_larger_of_both_takes():
    length = 256
    values = {"model": "demo", "corpora": ["demo-math"], "samples": 8, "repair": True}
    running = Running.of(validated(EvaluateRequest, {**values, "dtype": "float32"}))
    row = np.zeros(length, np.int32)
    text = TokenSequences("text", (row,) * (DEFAULT_REPAIR_TOKENS // length), 1, 0)
    settings = CalibrationSettings(length, dtype="float32", device="cpu")
    model = load_model_index("demo")
    alone = estimate_repair(model, keep_all(model), [text], settings).memory.total
    repair = running.with_repairs(0, repairs=True)
    assert repair == pytest.approx(alone, rel=0.25)
    assert running.with_repairs(repair + 1, repairs=True) == repair + 1
    assert running.with_repairs(1, repairs=False) == 1


@pytest.mark.parametrize("at_once", [1, 3])
def test_as_many_columns_are_solved_together_as_a_block_of_experts_leaves_room_for(at_once):
    model, place = load_model_index("demo"), Placement(stream_layers=True, experts_at_once=at_once)
    settings = CalibrationSettings(8, dtype="float32", device="cpu", placement=place)
    fit = FitSizes(kept=0, lacking=500, columns=20_000, one=9_000)
    memory = memory_of_repair(model, fit, running=100, hidden=0, settings=settings)
    around = layer_sizes(model, settings).around
    taken = [
        around + 100 + 500 + fit.one + number * fit.columns
        for number in (memory.columns, memory.columns + 1)
    ]
    assert memory.columns > 1
    assert taken[0] <= memory.device < taken[1]
    large = FitSizes(kept=0, lacking=500, columns=1 << 30, one=0)
    assert memory_of_repair(model, large, 100, 0, settings).columns == 1
