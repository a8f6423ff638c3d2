"""Samples, small models and evaluations for tests of evaluation."""

from collections.abc import Callable
from pathlib import Path

import pytest

from analysis.calibration.loading import CalibrationSettings, Placement
from analysis.files.shipped import SHIPPED_STATS
from builders.tokens import answers
from pruning.engine.run import Evaluations
from pruning.measures.drawn_samples import DrawnSamples
from pruning.records.evaluation import EvaluationStore


@pytest.fixture
def ask(tmp_path: Path) -> Callable[..., Evaluations]:
    """Evaluations of plans on some corpora, in batches of two, kept in a folder."""

    def make(described, plans, measures, name="stats", *, corpora=1, **placed):
        drawn = [
            DrawnSamples(answers((9, 5 + number, 12)), {"seed": 42, "drawn": "some"})
            for number in range(corpora)
        ]
        placement = Placement(**placed)
        settings = CalibrationSettings(
            seq_len=12, batch_size=2, dtype="float32", device="cpu", placement=placement
        )
        store = EvaluationStore([tmp_path / name])
        return Evaluations(described, plans, drawn, tuple(measures), settings, store)

    return make


@pytest.fixture(scope="module")
def shipped_record(demo):
    return EvaluationStore([SHIPPED_STATS]).records(demo.identity)[0]
