"""Token sequences, and corpora of token ids on disk."""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from analysis.corpora.sequences import TokenSequences


def token_sequences(
    *rows: Sequence[int], corpus: str = "letters", **more: object
) -> TokenSequences:
    """Sequences of these ids."""
    arrays = tuple(np.array(row, dtype=np.int32) for row in rows)
    return TokenSequences(corpus, arrays, len(rows), 0, **more)


def answers(
    lengths: Sequence[int] = (9, 5, 12, 7), answer: int = 3, vocab: int = 64
) -> TokenSequences:
    """Sequences of these lengths, random but seeded; the tokens from `answer` on count."""
    random = np.random.default_rng(7)
    rows = [random.integers(3, vocab, length) for length in lengths]
    counted = tuple(np.arange(length) >= answer for length in lengths)
    return token_sequences(*rows, corpus="text", counted=counted)


def write_ids(path: Path, rows: Iterable[Sequence[int]]) -> Path:
    """A corpus of token ids, a sequence a line."""
    lines = (json.dumps({"input_ids": [int(token) for token in row]}) + "\n" for row in rows)
    path.write_text("".join(lines))
    return path


def random_ids(path: Path, shape: tuple[int, int], seed: int = 0, vocab: int = 96) -> Path:
    """A corpus of so many sequences of a length, random but seeded."""
    return write_ids(path, np.random.default_rng(seed).integers(3, vocab, shape))
