"""Which positions are scored, by hand."""

import numpy as np
import pytest

from analysis.corpora import TokenSequences
from analysis.errors import CorpusError
from pruning.evaluate.samples import make_samples

IDS = (np.array([11, 12, 13, 14, 15], dtype=np.int32), np.array([21, 22, 23], dtype=np.int32))


def only_batch(samples):
    (batch,) = samples.batches()
    return batch


def test_every_token_but_the_first_is_predicted():
    batch = only_batch(make_samples(TokenSequences("text", IDS, 2, 0)))
    assert batch.scored.tolist() == [
        [True, True, True, True, False],  # positions 0..3 predict 12..15
        [True, True, False, False, False],  # 0 and 1 predict 22 and 23; then the sequence is over
    ]
    assert batch.targets.tolist() == [12, 13, 14, 15, 22, 23]
    assert batch.counts.tolist() == [4, 2]


def test_only_tokens_of_the_answer_are_predicted():
    counted = (np.array([0, 0, 1, 1, 0], dtype=bool), np.array([1, 0, 1], dtype=bool))
    samples = make_samples(TokenSequences("text", IDS, 2, 0, counted=counted))
    # 13 and 14 are the answer, predicted at 1 and 2. Token 21 counts but nothing stands before it.
    assert only_batch(samples).scored.tolist() == [
        [False, True, True, False, False],
        [False, True, False, False, False],
    ]
    assert only_batch(samples).targets.tolist() == [13, 14, 23]
    assert samples.num_scored.tolist() == [2, 1]


def test_packed_documents_do_not_predict_each_other():
    positions = (np.array([0, 1, 0, 1, 2], dtype=np.int32), np.array([0, 1, 2], dtype=np.int32))
    samples = make_samples(TokenSequences("text", IDS, 3, 0, positions=positions))
    assert only_batch(samples).targets.tolist() == [12, 14, 15, 22, 23]


def test_samples_without_an_answer_are_left_out_and_counted():
    counted = (np.zeros(5, dtype=bool), np.array([0, 1, 1], dtype=bool))
    samples = make_samples(TokenSequences("text", IDS, 2, 0, counted=counted))
    assert (len(samples), samples.num_unscored) == (1, 1)
    assert only_batch(samples).targets.tolist() == [22, 23]


def test_nothing_to_predict_is_refused():
    alone = TokenSequences("short.txt", (np.array([5], dtype=np.int32),), 1, 0)
    with pytest.raises(CorpusError, match=r"short\.txt has a token to predict"):
        make_samples(alone)


def test_batches_number_their_samples():
    rows = tuple(np.arange(4, dtype=np.int32) for _ in range(5))
    batches = list(make_samples(TokenSequences("text", rows, 5, 0), batch_size=2).batches())
    assert [(b.number, list(b.samples)) for b in batches] == [(0, [0, 1]), (1, [2, 3]), (2, [4])]
