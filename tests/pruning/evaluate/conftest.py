"""Samples, small models and evaluations for tests of evaluation."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from analysis.calibration.loading import CalibrationSettings, Placement
from analysis.corpora import TokenSequences
from analysis.stats.store import SHIPPED_STATS
from pruning.evaluate.drawing import DrawnSamples
from pruning.evaluate.record import EvaluationStore
from pruning.evaluate.run import Evaluations

MakeSequences = Callable[..., TokenSequences]


@pytest.fixture
def make_sequences() -> MakeSequences:
    """Sequences of these lengths, random but seeded; the tokens from `answer` on count."""

    def make(
        lengths: tuple[int, ...] = (9, 5, 12, 7), answer: int = 3, vocab: int = 64
    ) -> TokenSequences:
        random = np.random.default_rng(7)
        rows = tuple(random.integers(3, vocab, length).astype(np.int32) for length in lengths)
        counted = tuple(np.arange(length) >= answer for length in lengths)
        return TokenSequences("text", rows, len(rows), 0, counted=counted)

    return make


@pytest.fixture
def ask(make_sequences: MakeSequences, tmp_path: Path) -> Callable[..., Evaluations]:
    """Evaluations of plans on some corpora, in batches of two, kept in a folder."""

    def make(described, plans, measures, name="stats", *, corpora=1, **placed):
        drawn = [
            DrawnSamples(make_sequences((9, 5 + number, 12)), {"seed": 42, "drawn": "some"})
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
    """One of the demo's evaluations, to be changed."""
    return EvaluationStore([SHIPPED_STATS]).records(demo.identity)[0]
