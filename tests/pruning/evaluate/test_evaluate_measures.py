"""Measures at single positions and their summaries, by hand arithmetic and by brute force."""

import math
from typing import get_args

import numpy as np
import pytest
import torch

from analysis.errors import UserError
from pruning.measures import positions as measures
from pruning.measures.names import MeasureName
from pruning.measures.result import (
    MEASURES,
    SampleCount,
    SampleSums,
    SampleValues,
    interval_of,
    interval_or_none,
    make_evaluation,
)
from pruning.requests.evaluation import EvaluateRequest
from pruning.spec.base import validated

P = torch.tensor([[0.5, 0.25, 0.25], [0.125, 0.125, 0.75]])
Q = torch.tensor([[0.25, 0.5, 0.25], [0.5, 0.25, 0.25]])


def at(p=P, q=Q, targets=(0, 2), uniforms=(0.0, 0.0)):
    return measures.Positions(
        p.log(), q.log(), torch.tensor(targets), torch.tensor(uniforms, dtype=torch.float64)
    )


def test_a_token_that_the_candidate_never_gives_is_never_drawn():
    q = torch.tensor([[0.0, 1.0, 0.0], [0.0, 0.0, 1.0]])
    values = measures.sap(at(q=q, uniforms=(0.0, 1 - 1e-16)))
    assert values.dtype == torch.float64
    assert values.tolist() == pytest.approx([0.25, 0.75], abs=1e-6)  # float32 probabilities


def test_zero_probabilities_give_no_nan():
    p = torch.tensor([[1.0, 0.0, 0.0], [0.0, 0.5, 0.5]])
    assert measures.kl(at(p=p)).tolist() == pytest.approx([math.log(4), 0.5 * math.log(2 * 2)])
    assert measures.kl(at(q=p)).tolist() == [math.inf, math.inf]
    assert measures.esap(at(p=p)).tolist() == pytest.approx([0.25, 0.5])


def random_logs(seed, rows=40, vocab=53):
    generator = torch.Generator().manual_seed(seed)
    return measures.log_probabilities(3 * torch.randn(rows, vocab, generator=generator))


def test_expectation_of_sap_is_esap():
    p, q = random_logs(1), random_logs(2)
    draws = 20_000
    uniforms = (torch.arange(draws, dtype=torch.float64) + 0.5) / draws
    whole = measures.Positions(p, q, torch.zeros(40, dtype=torch.int64), torch.zeros(40))
    # A grid of uniform numbers instead of random ones: each token is drawn q draws times, to +-1.
    for row, wanted in enumerate(measures.esap(whole)[:5].tolist()):
        spread = [distribution[row].expand(draws, -1) for distribution in (p, q)]
        targets = torch.zeros(draws, dtype=torch.int64)
        taken = measures.sap(measures.Positions(*spread, targets, uniforms))
        assert float(taken.mean()) == pytest.approx(wanted, abs=53 / draws)


@pytest.mark.parametrize(
    ("dtype", "wide"), [(torch.bfloat16, torch.float32), (torch.float64, torch.float64)]
)
def test_softmax_is_float32_for_half_precision_and_keeps_float64(dtype, wide):
    assert measures.log_probabilities(torch.zeros(1, 4, dtype=dtype)).dtype == wide


def test_perplexity_is_the_exponential_of_the_loss():
    sums = SampleSums(np.array([1.0, 6.0]), np.array([1, 3]))
    result = make_evaluation(("nll", "ppl"), {"nll": sums, "full_nll": sums})
    for name in ("mean", "pooled", "low", "high"):
        value = getattr(result.metrics["nll"], name)
        assert getattr(result.metrics["ppl"], name) == math.exp(value)
    assert result.full["nll"] == result.metrics["nll"]
    assert (result.num_samples, result.num_tokens) == (2, 4)


def test_the_interval_holds_where_windows_of_a_document_are_alike():
    """40 documents of 1 to 6 windows, which share 4/5 of their variance, and a mean of 0."""
    random = np.random.default_rng(0)
    by_document, by_window = [], []
    for seed in range(200):
        sizes = random.integers(1, 7, size=40)
        documents = np.repeat(np.arange(40), sizes)
        numbers = 2 * random.normal(size=40)[documents] + random.normal(size=len(documents))
        for held, of in ((by_document, documents), (by_window, None)):
            low, high = interval_of([SampleValues(numbers, of)], seed)
            held.append(low <= 0 <= high)
    assert 0.88 <= np.mean(by_document) <= 0.99
    assert np.mean(by_window) < 0.85  # so it would be if windows counted as independent


def test_documents_are_resampled_with_all_of_their_samples():
    numbers, documents = np.random.default_rng(3).normal(size=9), (4, 4, 4, 4, 7, 7, 9, 9, 12)
    interval = interval_of([SampleValues(numbers, documents)])
    # By definition: documents are drawn, and all of their samples averaged.
    parts = [numbers[:4], numbers[4:6], numbers[6:8], numbers[8:]]
    draws = np.random.default_rng(42).integers(4, size=(1000, 4))
    means = [np.concatenate([parts[one] for one in drawn]).mean() for drawn in draws]
    assert interval == pytest.approx(np.percentile(means, [2.5, 97.5]))
    # With a sample each, it is the bootstrap over samples, whatever the documents are called.
    apart = interval_of([SampleValues(numbers, tuple(range(20, 29)))])
    rows = np.random.default_rng(42).integers(9, size=(1000, 9))
    assert apart == pytest.approx(np.percentile(numbers[rows].mean(axis=1), [2.5, 97.5]))
    assert np.array_equal(apart, interval_of([SampleValues(numbers)]))
    # Windows that say the same add nothing: the interval is that of one of them.
    copies = SampleValues(np.repeat(numbers, 5), np.repeat(np.arange(9), 5))
    assert interval_of([copies]) == pytest.approx(apart)
    both = interval_of([SampleValues(np.stack([numbers, 2 * numbers], axis=1), documents)])
    assert both == pytest.approx(np.stack([interval, 2 * interval], axis=1))


def test_the_variance_of_the_mean_is_that_between_documents():
    numbers = np.array([1.0, 4.0, 7.0, 8.0])
    assert SampleValues(numbers).variance_of_mean() == pytest.approx(numbers.var(ddof=1) / 4)
    # Four copies of each tell nothing more.
    copies = SampleValues(np.repeat(numbers, 4), np.repeat(np.arange(4), 4))
    assert copies.variance_of_mean() == pytest.approx(numbers.var(ddof=1) / 4)
    # Documents of 1 and 3 samples, mean 5: residuals -4 and 4, so 2 * (16 + 16) / 4**2.
    assert SampleValues(numbers, (0, 1, 1, 1)).variance_of_mean() == pytest.approx(4)
    assert SampleValues(numbers[:1]).variance_of_mean() == 0


def test_the_interval_is_seeded_and_absent_for_one_document():
    means = SampleValues(np.random.default_rng(1).random(9))
    assert interval_or_none(means, 5) == interval_or_none(means, 5)
    assert interval_or_none(means, 5) != interval_or_none(means, 6)
    alone = SampleValues(means.numbers, (3,) * 9)
    assert interval_or_none(alone) == (None, None)
    assert interval_or_none(SampleValues(means.numbers[:1])) == (None, None)
    assert np.isnan(interval_of([means, alone])).all()
    low, high = interval_of([SampleValues(np.array([1.0, 2.0, 6.0]), (0, 0, 1))])
    assert (low, high) == (1.5, 6)  # two documents: either alone


@pytest.mark.parametrize(
    ("count", "words", "interval"),
    [
        (
            SampleCount(64, 5),
            "64 samples of 5 documents",
            "95% by 5 documents, rough: they are few",
        ),
        (SampleCount(64, 10), "64 samples of 10 documents", "95% by 10 documents"),
        (SampleCount(1, 1), "1 sample of 1 document", "no interval, which takes two documents"),
        (SampleCount(2048, None), "2,048 windows of one text", "95% by windows of one text"),
    ],
)
def test_it_is_said_what_an_interval_rests_on(count, words, interval):
    assert (count.words, count.interval_words) == (words, interval)


def test_names_of_measures_are_checked():
    asked = {"model": "demo", "corpora": ["demo-code"]}
    several = validated(EvaluateRequest, {**asked, "measures": ["kl", "esap", "kl"]})
    assert several.measures == ("kl", "esap")
    assert get_args(MeasureName) == tuple(MEASURES)
    with pytest.raises(UserError, match=r"^--measure: choose .*'esp'.* Did you mean 'esap'"):
        validated(EvaluateRequest, {**asked, "measures": "esp"})
    with pytest.raises(UserError, match="at least 1"):
        validated(EvaluateRequest, {**asked, "measures": []})
