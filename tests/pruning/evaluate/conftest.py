"""Samples and small models for tests of evaluation."""

from collections.abc import Callable

import numpy as np
import pytest

from analysis.corpora import TokenSequences

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
