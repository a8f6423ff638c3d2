"""Representative documents: the document nearest each k-means centroid of mean embeddings.

MoE Pathfinder selects its calibration samples by k-means but names no features. Ours are the mean
of the input embeddings over a document's tokens, L2-normalised, so a constant factor on a model's
embeddings does not matter.
"""

from collections.abc import Iterator, Sequence
from itertools import islice

import numpy as np

from analysis.checkpoint.index import Checkpoint
from analysis.corpora.clusters import nearest_to_centroids
from analysis.corpora.sampling import DocumentSelection
from analysis.corpora.tokens import Tokens
from analysis.errors import CheckpointError, CorpusError
from analysis.numbers.arrays import FloatArray, IntArray
from analysis.numbers.elements import FLOAT_BYTES, as_float64

POOL = 4096  # documents, in seeded order, to choose from
_READ = 1 << 16  # tokens of a document; one of more than two million characters is cut to them
_ROWS_AT_ONCE = 4096
# Names of the table of input embeddings in checkpoints, after any prefix.
_TABLES = ("embed_tokens", "embeddings", "word_embeddings", "tok_embeddings", "wte")
_NAMES = tuple(f".{name}.weight" for name in _TABLES)


class CheckpointEmbedding:
    """The input embeddings of a checkpoint, read row by row."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        tables = [
            entry
            for entry in checkpoint.tensors.values()
            if len(entry.shape) == 2 and f".{entry.name}".endswith(_NAMES)
        ]
        # Vision or audio towers and prediction heads have their own tables, deeper or later.
        tables.sort(key=lambda entry: (-entry.shape[0], entry.name.count("."), entry.name))
        if not tables or tables[0].dtype not in FLOAT_BYTES:
            what = f"it is in {tables[0].dtype}" if tables else "none has a known name"
            raise CorpusError(
                f"The checkpoint has no readable table of embeddings ({what}) to choose "
                "representative documents by; leave out --select."
            )
        self._entry = tables[0]
        self._path = checkpoint.path / self._entry.shard
        self.num_tokens = self._entry.shape[0]

    def rows(self, tokens: IntArray) -> FloatArray:
        """(tokens, hidden size) embeddings of these token ids."""
        size = self._entry.nbytes // self.num_tokens
        with self._path.open("rb") as file:
            parts = []
            for token in tokens.tolist():
                file.seek(self._entry.start + token * size)
                parts.append(file.read(size))
                if len(parts[-1]) < size:
                    raise CheckpointError(f"{self._path.name} became shorter while it was read.")
        return as_float64(b"".join(parts), self._entry.dtype).reshape(len(tokens), -1)


def mean_embeddings(documents: Sequence[Tokens], embedding: CheckpointEmbedding) -> FloatArray:
    """(documents, hidden size): the mean embedding of each document's tokens, scaled to norm 1."""
    from scipy.sparse import csr_array

    tokens, places = np.unique(np.concatenate([doc.ids for doc in documents]), return_inverse=True)
    if tokens[-1] >= embedding.num_tokens:
        raise CorpusError(
            f"The corpus has the token id {tokens[-1]}, but the model has {embedding.num_tokens} "
            "embeddings; was it tokenised for another model?"
        )
    lengths = [len(doc.ids) for doc in documents]
    owners = np.repeat(np.arange(len(documents)), lengths)
    counts = csr_array(
        (np.ones(len(places)), (owners, places)), shape=(len(documents), len(tokens))
    ).tocsc()
    sums = np.zeros(())
    for start in range(0, len(tokens), _ROWS_AT_ONCE):
        chunk = slice(start, start + _ROWS_AT_ONCE)
        sums = sums + counts[:, chunk] @ embedding.rows(tokens[chunk].astype(np.int64))
    means = sums / np.asarray(lengths)[:, None]
    norms = np.linalg.norm(means, axis=1, keepdims=True)
    features: FloatArray = means / np.where(norms > 0, norms, 1)
    return features


def kmeans_selection(embedding: CheckpointEmbedding, clusters: int) -> DocumentSelection:
    """The documents nearest the centroids of `clusters` clusters, in the order drawn."""

    def choose(documents: Iterator[Tokens], seed: int) -> Iterator[Tokens]:
        pool = list(islice((item for item in documents if len(item.ids)), POOL))
        if not pool:
            return
        for number in nearest_to_centroids(mean_embeddings(pool, embedding), clusters, seed):
            yield pool[number]

    words = f"kmeans, {clusters} clusters of at most {POOL} documents"
    return DocumentSelection(choose, words, reads=_READ)
