"""DrawnSamples: the sequences of an evaluation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from analysis.corpora.sequences import TokenSequences
    from pruning.measures.questions import Questions


@dataclass(frozen=True, slots=True, eq=False)
class DrawnSamples:
    """The sequences of an evaluation, with the facts that records state."""

    sequences: TokenSequences  # one row per sample; counted tokens are predicted
    # `seed`, `drawn` (which documents, in words), `skipped`, `seq_len`, and how the sequences were
    # prepared; plain JSON.
    facts: Mapping[str, Any]
    shortfall: str = ""  # why there are fewer samples than asked for; empty if there are not
    questions: Questions | None = None  # of the same documents and those that follow

    @property
    def num_documents(self) -> int | None:
        """Documents that samples with something to predict are of; None for one joined text."""
        sequences = self.sequences
        if sequences.documents is None:
            return None
        documents = np.array(sequences.documents)
        if sequences.counted is not None:
            documents = documents[[bool(row.any()) for row in sequences.counted]]
        return len(np.unique(documents))

    @property
    def corpus(self) -> dict[str, Any]:
        """The corpus in records."""
        return {
            "name": self.sequences.corpus,
            "digest": self.sequences.digest,
            "num_documents": self.num_documents,
            **self.facts,
        }
