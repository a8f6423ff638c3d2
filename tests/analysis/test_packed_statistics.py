"""Statistics of packed documents are those of the documents alone; what does not count is out."""

import numpy as np
import pandas as pd
import pytest
from calibrations import calibrated, describe, table_of

from analysis.corpora.documents import Document
from analysis.corpora.sampling import tokenize
from analysis.corpora.settings import Sampling
from analysis.stats.columns import LARGEST
from builders import VOCAB

LENGTHS = (9, 5, 7, 3, 9, 2, 6)
RANDOM = np.random.default_rng(5)
DOCUMENTS = [
    Document(
        input_ids=tuple(RANDOM.integers(3, VOCAB, size=length).tolist()),
        answer=tuple((RANDOM.random(length) < 0.4).tolist()),
    )
    for length in LENGTHS
]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return describe(tmp_path_factory.mktemp("packed"), "qwen3_moe")


def run_of(model, sequences, tmp_path, batch_size=2):
    settings = {"seq_len": 12, "batch_size": batch_size, "dtype": "float64"}
    return calibrated(model, tmp_path / sequences.digest[:8], sequences, **settings)


def sequences_of(packing, count="all"):
    sampling = Sampling(100, 12, packing=packing, count=count)
    return tokenize(DOCUMENTS, None, sampling, corpus="ids")


def assert_close(table, other):
    pd.testing.assert_frame_equal(table, other, rtol=1e-10, atol=0)


def test_packed_documents_give_the_sums_of_the_documents_alone(model, tmp_path):
    packed, alone = sequences_of("pack"), sequences_of("pad")
    assert len(packed.rows) < len(alone.rows) == len(LENGTHS)
    # Rows of unequal lengths, so that the batches of packed rows hold padding too.
    assert packed.num_padded(2) > 0
    one_by_one = run_of(model, alone, tmp_path, batch_size=1)
    assert_close(table_of(run_of(model, packed, tmp_path)), table_of(one_by_one))
    joined = sequences_of("concatenate")
    with pytest.raises(AssertionError):
        assert_close(table_of(run_of(model, joined, tmp_path)), table_of(one_by_one))


@pytest.mark.parametrize("packing", ["pad", "pack"])
def test_answers_and_the_rest_add_up_to_all(model, tmp_path, packing):
    answers = sequences_of(packing, "response")
    rest = type(answers)(
        answers.corpus,
        answers.rows,
        answers.num_documents,
        0,
        counted=tuple(~row for row in answers.counted),
        positions=answers.positions,
    )
    runs = [run_of(model, part, tmp_path) for part in (answers, rest, sequences_of(packing))]
    some, others, whole = (table_of(run).drop(columns="vector_sum_sq") for run in runs)
    added = some + others
    added[["layer", "expert"]] = some[["layer", "expert"]]
    added[LARGEST] = np.maximum(some[LARGEST], others[LARGEST])
    assert_close(added, whole)
    counted = sum(sum(document.answer) for document in DOCUMENTS)
    per_layer = some.groupby("layer")["num_tokens"].sum().unique().tolist()
    assert per_layer == [counted * model.layers[0].top_k]
    (corpus,) = runs[0].manifest.corpora
    assert (corpus.num_counted, corpus.num_tokens) == (counted, sum(LENGTHS))
