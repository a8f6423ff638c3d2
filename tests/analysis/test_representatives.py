"""Representative documents: mean embeddings by brute force, one document a cluster, seeded."""

import numpy as np
import pytest
import torch
from letters import LetterTokenizer
from safetensors.torch import save_file

from analysis.checkpoint.opening import open_checkpoint
from analysis.corpora import representatives
from analysis.corpora.clusters import nearest_to_centroids
from analysis.corpora.documents import Document
from analysis.corpora.representatives import CheckpointEmbedding, kmeans_selection, mean_embeddings
from analysis.corpora.sampling import tokenize
from analysis.corpora.settings import Sampling
from analysis.corpora.tokens import Tokens
from analysis.errors import CheckpointError, CorpusError


class Table:
    """Embeddings at hand."""

    def __init__(self, array):
        self.array = np.asarray(array, dtype=np.float64)
        self.num_tokens = len(self.array)

    def rows(self, tokens):
        return self.array[tokens]


def documents_of(*ids):
    return [Tokens(np.array(row, dtype=np.int32)) for row in ids]


def checkpoint_of(tmp_path, tensors):
    (tmp_path / "config.json").write_text('{"hidden_size": 3}')
    save_file(tensors, tmp_path / "model.safetensors")
    return open_checkpoint(tmp_path)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
@pytest.mark.parametrize(
    "name",
    [
        "model.embed_tokens.weight",
        "model.language_model.embed_tokens.weight",
        "backbone.embeddings.weight",
        "embed_tokens.weight",
    ],
)
def test_rows_are_those_of_the_checkpoint(tmp_path, dtype, name):
    table = torch.randn(11, 3, generator=torch.Generator().manual_seed(1)).to(dtype)
    others = {
        "lm_head.weight": torch.zeros(11, 3),
        "vision.position.embeddings.weight": torch.zeros(5, 3),
        "model.norm.weight": torch.zeros(3),
    }
    embedding = CheckpointEmbedding(checkpoint_of(tmp_path, {**others, name: table}))
    rows = embedding.rows(np.array([10, 0, 4]))
    assert embedding.num_tokens == 11
    assert rows.tolist() == table[[10, 0, 4]].to(torch.float64).tolist()


def test_a_checkpoint_that_becomes_shorter_while_it_is_read(tmp_path):
    table = {"model.embed_tokens.weight": torch.ones(11, 3)}
    embedding = CheckpointEmbedding(checkpoint_of(tmp_path, table))
    shard = tmp_path / "model.safetensors"
    shard.write_bytes(shard.read_bytes()[:-1])
    with pytest.raises(CheckpointError, match=r"model\.safetensors became shorter"):
        embedding.rows(np.array([0, 10]))


def test_a_checkpoint_without_embeddings_says_so(tmp_path):
    checkpoint = checkpoint_of(tmp_path, {"lm_head.weight": torch.zeros(11, 3)})
    with pytest.raises(CorpusError, match="no readable table of embeddings"):
        CheckpointEmbedding(checkpoint)


def test_features_are_normalised_means(monkeypatch):
    monkeypatch.setattr(representatives, "_ROWS_AT_ONCE", 3)
    table = np.random.default_rng(0).normal(size=(9, 4))
    ids = [[0, 0, 8], [5], [1, 2, 3, 4, 5, 6, 7]]
    features = mean_embeddings(documents_of(*ids), Table(table))
    for row, tokens in zip(features, ids, strict=True):
        mean = sum(table[token] for token in tokens) / len(tokens)
        np.testing.assert_allclose(row, mean / np.sqrt((mean**2).sum()), rtol=1e-12)
    # A constant factor, as some models have one, changes nothing.
    scaled = mean_embeddings(documents_of(*ids), Table(12 * table))
    np.testing.assert_allclose(scaled, features, rtol=1e-12)
    with pytest.raises(CorpusError, match="has the token id 9, but the model has 9 embeddings"):
        mean_embeddings(documents_of([9]), Table(table))


def test_one_document_is_taken_from_each_of_well_parted_groups():
    rng = np.random.default_rng(0)
    centres = 10 * np.eye(4)
    groups = np.repeat(np.arange(4), [30, 3, 12, 1])
    features = centres[groups] + rng.normal(scale=0.1, size=(46, 4))
    chosen = nearest_to_centroids(features, 4, seed=0)
    assert groups[chosen].tolist() == [0, 1, 2, 3]
    for number in chosen:
        members = features[groups == groups[number]]
        distances = np.linalg.norm(members - members.mean(axis=0), axis=1)
        own = np.linalg.norm(features[number] - members.mean(axis=0))
        assert own == pytest.approx(distances.min())


def test_more_clusters_than_documents_are_refused():
    features = np.array([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    assert nearest_to_centroids(features, 2, seed=0) == [0, 2]
    with pytest.raises(CorpusError, match="has 2 distinct documents to choose from, fewer than 3"):
        nearest_to_centroids(features, 3, seed=0)


def test_a_selection_is_seeded_and_of_the_size_asked_for():
    rng = np.random.default_rng(3)
    letters = [chr(97 + int(letter)) for letter in rng.integers(0, 26, 600)]
    documents = [Document(text="".join(letters[i : i + 6])) for i in range(0, 600, 6)]
    selection = kmeans_selection(Table(rng.normal(size=(30, 5))), 7)

    def rows(seed):
        sampling = Sampling(1000, 8, seed, packing="pad")
        sequences = tokenize(
            documents, LetterTokenizer(), sampling, corpus="letters", selection=selection
        )
        assert "kmeans, 7 clusters" in sequences.prepared["select"]
        return [row.tolist() for row in sequences.rows]

    assert len(rows(0)) == 7
    assert rows(0) == rows(0)
    whole = [[*LetterTokenizer().encode(document.text), 0] for document in documents]
    assert all(row in whole for row in rows(0))
