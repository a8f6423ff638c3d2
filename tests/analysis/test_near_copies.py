"""Runs of tokens that two texts share, against sets of tuples."""

import numpy as np
import pytest

from analysis.corpora.near_copies import RUN, NewTokens, TokenRuns
from analysis.corpora.tokens import Tokens
from analysis.errors import CorpusError


def brute_force(documents, ids):
    known = {tuple(ids[at : at + RUN]) for ids in documents for at in range(len(ids) - RUN + 1)}
    covered = np.zeros(len(ids), dtype=bool)
    for at in range(len(ids) - RUN + 1):
        if tuple(ids[at : at + RUN]) in known:
            covered[at : at + RUN] = True
    return covered


def random_ids(rng, length):
    return rng.integers(3, size=length).astype(np.int32)


def test_covered_tokens_are_those_of_shared_runs():
    rng = np.random.default_rng(5)
    known = [random_ids(rng, length) for length in (400, 31, 0, 90)]
    runs, shares = TokenRuns.of(known), []
    for length in (0, 31, 32, 33, 64, 300):
        for start in (0, 40, 200):
            copied = known[0][start : start + length]
            text = np.concatenate([random_ids(rng, 20), copied, random_ids(rng, 40)])
            covered = runs.covers(text)
            assert covered.tolist() == brute_force(known, text).tolist()
            shares.append(covered.mean())
    assert min(shares) == 0
    assert max(shares) > 0.7


def test_a_run_does_not_span_two_documents():
    halves = np.arange(16, dtype=np.int32), np.arange(16, 32, dtype=np.int32)
    whole = np.concatenate(halves)
    assert not TokenRuns.of(halves).covers(whole).any()
    assert TokenRuns.of([whole]).covers(whole).all()
    assert not TokenRuns.of([]).covers(whole).any()


def test_what_is_left_to_count():
    licence, body = np.arange(40, dtype=np.int32), np.arange(100, 110, dtype=np.int32)
    new = NewTokens(TokenRuns.of([licence]))
    answers = np.zeros(50, dtype=bool)
    answers[35:45] = True  # five tokens of the licence, five of the body
    texts = [
        Tokens(licence),
        Tokens(np.concatenate([licence, body])),
        Tokens(np.concatenate([licence, body]), answers),
        Tokens(body),
    ]
    left = list(new.of(texts))
    assert [item.counted is None or item.counted.sum() for item in left] == [10, 5, True]
    assert new.num_left_out == 40 + 40 + 5
    with pytest.raises(CorpusError, match="All 1 documents"):
        list(NewTokens(TokenRuns.of([licence])).of(texts[:1]))
