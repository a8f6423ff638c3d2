"""Memory that a dry run says: a repair's as it estimates itself."""

import numpy as np
import pytest

from analysis.calibration.loading import CalibrationSettings
from analysis.corpora.sequences import TokenSequences
from analysis.model.opening import load_model_index
from pruning.plan.plan import keep_all
from pruning.repair.estimate import estimate_repair
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
