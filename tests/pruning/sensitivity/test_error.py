"""The error of the sum over layers: what is learned of it, by brute force, and on fresh plans."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from analysis.drain import drain
from analysis.model import load_model_index
from analysis.stats.store import SHIPPED_STATS, stats_store
from pruning.evaluate.record import EvaluationStore
from pruning.evaluate.result import MIDDLE, SampleValues
from pruning.planning.measured import find_sensitivity, without_budget
from pruning.planning.predicted import predict, sum_error
from pruning.planning.ranking import select_measured
from pruning.requests.plan import SpecRequest
from pruning.sensitivity.curves import Curve, Curves, Sensitivity
from pruning.sensitivity.error import SumError
from pruning.sensitivity.record import SensitivityStore
from pruning.spec import spec_of

# Evaluations of plans that nothing was learned from: random counts, other shares, other limits.
FRESH = Path(__file__).parent / "fresh"
ALL = ("demo-code", "demo-math", "demo-prose")
ORDERS = {
    "ean": {"criterion": "ean", "corpora": ALL},
    "reap": {"criterion": "reap", "corpora": ("demo-code",)},
    "heapr": {"criterion": "heapr", "granularity": "neuron", "corpora": ("demo-code",)},
}


def error_of(order, *directories):
    """The error of a shipped order, learned from the evaluations of some directories."""
    store, model = stats_store(), load_model_index("demo")
    spec = spec_of(**ORDERS[order], sparsity="50%", schedule="measured", cost="nll")
    selection = without_budget(
        drain(select_measured(SpecRequest(model="demo", plan=spec), model, store))
    )
    known = SensitivityStore(store.directories)
    curves = find_sensitivity(selection, spec, known)
    return sum_error(selection, curves, EvaluationStore(directories), known, ())


@pytest.fixture(scope="module")
def cells():
    """(predicted, low, high, measured, texts low, texts high) of each fresh plan and corpus."""
    rows = []
    for order in ORDERS:
        learned, fresh = error_of(order, SHIPPED_STATS), error_of(order, FRESH)
        plans = sorted(fresh.known.keys() - learned.known.keys())
        _, by_corpus = learned.bands(np.array(plans))
        for curves in learned.curves.curves:
            band = by_corpus[curves.corpus]
            sums = SampleValues(curves.predicted_by_sample(np.array(plans)), curves.documents)
            resampled = sums.resampled_means(np.random.default_rng(42))
            texts = np.percentile(resampled, MIDDLE, axis=0)
            measured = [fresh.known[plan].get(curves.corpus, math.nan) for plan in plans]
            rows.append(np.stack([*band, measured, *texts], axis=1))
    cells = np.concatenate(rows)
    return cells[~np.isnan(cells[:, 3])]


def test_of_fresh_plans_90_to_99_percent_lie_in_the_band(cells):
    median, low, high, measured, texts_low, texts_high = cells.T
    assert len(cells) >= 120
    inside = (low <= measured) & (measured <= high)
    assert 0.90 <= inside.mean() <= 0.99
    # Texts alone are far from enough, and measured plans correct the sum somewhat.
    only_texts = (texts_low <= measured) & (measured <= texts_high)
    assert only_texts.mean() < 0.7
    sums = (texts_low + texts_high) / 2
    assert np.abs(median - measured).mean() < 0.9 * np.abs(sums - measured).mean()


LEVELS = np.array([0, 4, 8])


def known_curves(samples=3):
    """Two layers of 8: the first costs 0.1 a removal, the second 0.2, on every sample alike."""
    by_sample = tuple(np.outer(each * LEVELS, np.ones(samples)) for each in (0.1, 0.2))
    layers = tuple(Curve(LEVELS, rows.mean(axis=1)) for rows in by_sample)
    return Curves(layers, {}, corpus="a", samples=samples, by_sample=by_sample)


KNOWN = {(4, 4): {"a": 1.5}, (8, 0): {"a": 0.7}, (2, 6): {"a": 2.3}}
OTHER = (4, 8)


def learned(known):
    return SumError(Sensitivity((known_curves(),), "nll"), known)


def test_log_ratios_are_those_of_a_gaussian_process_in_hand_arithmetic():
    """Of exact texts: the conditional of a normal distribution, with solve in place of inverse."""
    plans = list(KNOWN)
    sums = np.array([0.1 * first + 0.2 * second for first, second in [*plans, OTHER]])
    shares = np.array([*plans, OTHER]) / 8
    apart = np.array([[np.mean(np.abs(one - two)) for two in shares] for one in shares])
    covariance = 0.25**2 * np.exp(-apart) + 0.03**2 * np.eye(4)
    ratios = np.log((np.array([1.5, 0.7, 2.3]) + 0.01) / (sums[:3] + 0.01))
    weights = np.linalg.solve(covariance[:3, :3], covariance[:3, 3])
    expected = (sums[3] + 0.01) * np.exp(weights @ ratios) - 0.01
    variance = covariance[3, 3] - weights @ covariance[:3, 3]
    misfit = ratios @ np.linalg.solve(covariance[:3, :3], ratios)
    scale = np.sqrt((8 + misfit) / 11 * variance)
    band, _ = learned(KNOWN).bands(np.array([OTHER]))
    assert band.median[0] == pytest.approx(expected)
    # 97.5% of Student's t with 11 degrees is 2.201; 1,000 draws are near it.
    ends = [np.log((end[0] + 0.01) / (expected + 0.01)) / scale for end in (band.low, band.high)]
    assert ends == [pytest.approx(-2.201, abs=0.25), pytest.approx(2.201, abs=0.25)]


def test_a_plan_is_predicted_as_if_it_had_not_been_measured():
    plans = np.array(list(KNOWN))
    at_once, _ = learned(KNOWN).bands(plans)
    for place, plan in enumerate(KNOWN):
        without, _ = learned({key: by for key, by in KNOWN.items() if key != plan}).bands(plans)
        assert at_once.median[place] == pytest.approx(without.median[place])
        # One degree of freedom apart.
        assert at_once.high[place] == pytest.approx(without.high[place], rel=0.05)


def test_bands_narrow_beside_what_was_measured_and_say_where_they_are_guesses():
    near, far, nothing = (4, 5), (0, 8), (0, 0)
    error, prior = learned({(4, 4): {"a": 1.2}}), learned({})
    (known, _), (unknown, _) = (
        each.bands(np.array([near, far, nothing])) for each in (error, prior)
    )
    width, prior_width = (np.log(each.high[:2] / each.low[:2]) for each in (known, unknown))
    assert width[0] < 0.7 * width[1] < 0.7 * prior_width[1]
    assert [each[2] for each in known] == [0, 0, 0]
    assert prior.is_guess(near) and not error.is_guess(near) and error.is_guess((4, 4))
    assert error.is_guess((5, 5)) and not error.is_guess((4, 8))  # of 2 layers, one is no majority
    assert predict(prior, near).words.startswith("a guess: loss +1.40 (")
    assert predict(error, near).words.startswith("predicted loss +1.40 (")


def test_texts_widen_the_band():
    noisy = tuple(np.outer(each * LEVELS, [0.2, 1.0, 1.8]) for each in (0.1, 0.2))
    curves = replace(known_curves(), by_sample=noisy)
    wide, _ = SumError(Sensitivity((curves,), "nll"), KNOWN).bands(np.array([OTHER]))
    narrow, _ = learned(KNOWN).bands(np.array([OTHER]))
    assert wide.high[0] - wide.low[0] > 1.5 * (narrow.high[0] - narrow.low[0])
