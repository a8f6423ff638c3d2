"""Measures at single positions and their summaries, by hand arithmetic and by brute force."""

import math
from typing import get_args

import numpy as np
import pytest
import torch

from analysis.errors import UserError
from pruning.evaluate import measures
from pruning.evaluate.result import (
    MEASURES,
    MeasureName,
    SampleSums,
    bootstrap_interval,
    make_evaluation,
    summarise,
)
from pruning.requests.base import validated
from pruning.requests.evaluation import EvaluateRequest

P = torch.tensor([[0.5, 0.25, 0.25], [0.125, 0.125, 0.75]])
Q = torch.tensor([[0.25, 0.5, 0.25], [0.5, 0.25, 0.25]])


def at(p=P, q=Q, targets=(0, 2), uniforms=(0.0, 0.0)):
    return measures.Positions(
        p.log(), q.log(), torch.tensor(targets), torch.tensor(uniforms, dtype=torch.float64)
    )


def close(values, wanted):
    assert values.dtype == torch.float64
    assert values.tolist() == pytest.approx(wanted, abs=1e-6)  # float32 probabilities


def test_a_token_that_the_candidate_never_gives_is_never_drawn():
    q = torch.tensor([[0.0, 1.0, 0.0], [0.0, 0.0, 1.0]])
    close(measures.sap(at(q=q, uniforms=(0.0, 1 - 1e-16))), [0.25, 0.75])


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
    # A grid of uniform numbers instead of random ones: each token is drawn q draws times, to +-1.
    for row in range(5):
        spread = [each[row].expand(draws, -1) for each in (p, q)]
        taken = measures.sap(
            measures.Positions(*spread, torch.zeros(draws, dtype=torch.int64), uniforms)
        )
        whole = measures.Positions(p, q, torch.zeros(40, dtype=torch.int64), torch.zeros(40))
        wanted = float(measures.esap(whole)[row])
        assert float(taken.mean()) == pytest.approx(wanted, abs=53 / draws)


def test_equal_distributions_are_exactly_alike():
    p = random_logs(3, rows=200, vocab=997)
    whole = measures.Positions(
        p, p, torch.zeros(200, dtype=torch.int64), torch.rand(200, dtype=torch.float64)
    )
    assert (measures.esap(whole) == 1).all()
    assert (measures.sap(whole) == 1).all()
    assert (measures.kl(whole) == 0).all()


def test_softmax_is_float32_for_half_precision_and_keeps_float64():
    assert (
        measures.log_probabilities(torch.zeros(1, 4, dtype=torch.bfloat16)).dtype == torch.float32
    )
    assert measures.log_probabilities(torch.zeros(1, 4, dtype=torch.float64)).dtype == torch.float64


def test_sample_mean_and_pooled_mean_by_hand():
    # Samples of 1 and 3 positions: sums 1 and 6. Means 1 and 2 -> 1.5; pooled 7/4.
    metric = summarise(SampleSums(np.array([1.0, 6.0]), np.array([1, 3])))
    assert (metric.mean, metric.pooled) == (1.5, 1.75)
    assert 1 <= metric.low <= 1.5 <= metric.high <= 2


def test_perplexity_is_the_exponential_of_the_loss():
    sums = SampleSums(np.array([1.0, 6.0]), np.array([1, 3]))
    result = make_evaluation(("nll", "ppl"), {"nll": sums, "full_nll": sums})
    for name in ("mean", "pooled", "low", "high"):
        value = getattr(result.metrics["nll"], name)
        assert getattr(result.metrics["ppl"], name) == math.exp(value)
    assert result.full["nll"] == result.metrics["nll"]
    assert (result.num_samples, result.num_tokens) == (2, 4)


def test_the_interval_covers_as_often_as_it_says():
    # Means of 30 samples of a unit normal: the interval should hold 0 in about 95% of the cases.
    random = np.random.default_rng(0)
    held = [
        low <= 0 <= high
        for low, high in (bootstrap_interval(random.normal(size=30), seed) for seed in range(200))
    ]
    assert 0.88 <= np.mean(held) <= 0.99


def test_the_interval_is_seeded_and_absent_for_one_sample():
    means = np.random.default_rng(1).random(9)
    assert bootstrap_interval(means, 5) == bootstrap_interval(means, 5)
    assert bootstrap_interval(means, 5) != bootstrap_interval(means, 6)
    assert bootstrap_interval(means[:1]) == (None, None)


def test_names_of_measures_are_checked():
    asked = {"model": "demo", "corpora": ["demo-code"]}
    several = validated(EvaluateRequest, {**asked, "measures": ["kl", "esap", "kl"]})
    assert several.measures == ("kl", "esap")
    assert get_args(MeasureName) == tuple(MEASURES)
    with pytest.raises(UserError, match=r"^--measure: choose .*'esp'.* Did you mean 'esap'"):
        validated(EvaluateRequest, {**asked, "measures": "esp"})
    with pytest.raises(UserError, match="at least 1"):
        validated(EvaluateRequest, {**asked, "measures": []})
