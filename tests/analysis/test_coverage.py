"""Coverage by hand; fair blends against a grid; what weights may be."""

from fractions import Fraction
from itertools import product

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from analysis.criteria import CRITERIA, get_criterion
from analysis.demo import texts
from analysis.errors import CriterionError, StatsError
from analysis.ranking.coverage import Blender, coverage, fair_blend
from analysis.stats.blend import Mixture
from analysis.stats.store import SHIPPED_STATS, StatsStore


def test_coverage_by_hand():
    # Layer 0 keeps 6 of 8, layer 1 keeps 1 of 4 and has one expert less: (0.75 + 0.25) / 2.
    saliency = np.array([[5.0, 1.0, 2.0], [3.0, 1.0, np.nan]])
    kept = np.array([[True, True, False], [False, True, False]])
    assert coverage(saliency, kept) == 0.5


def test_a_layer_without_saliency_has_nothing_to_lose():
    saliency = np.array([[0.0, 0.0], [3.0, 1.0]])
    assert coverage(saliency, np.array([[True, False], [True, False]])) == 0.875


@pytest.fixture(scope="module")
def demo():
    store = StatsStore(SHIPPED_STATS)
    runs = {run.manifest.corpus: run for run in store.runs() if run.manifest.kind == "routed"}
    return Mixture([runs[name] for name in texts.TEXTS])


def best_of_grid(blender):
    points = [(a, b) for a, b in product(range(21), repeat=2) if a + b <= 20]
    weights = [(a / 20, b / 20, (20 - a - b) / 20) for a, b in points]
    return max(min(blender.coverage(point)) for point in weights)


@pytest.mark.parametrize("name", ["reap", "frequency", "man", "mone", "0,2,2"])
@pytest.mark.parametrize("sparsity", ["0.25", "0.5", "0.75"])
def test_a_fair_blend_is_no_worse_than_the_grid(demo, name, sparsity):
    blender = Blender(demo, get_criterion(name), "applied", Fraction(sparsity))
    fair = fair_blend(blender)
    assert sum(fair.weights) == pytest.approx(1)
    assert list(fair.coverage) == blender.coverage(fair.weights).tolist()
    equal = min(blender.coverage((1, 1, 1)))
    assert min(fair.coverage) >= max(best_of_grid(blender), equal) - 1e-12


@pytest.mark.parametrize("corpora", [4, 5])
def test_beyond_the_grid_updates_beat_equal_weights(save_run, corpora):
    runs = [save_run(i, counts=(24, 24), corpora=(f"text {i}",)) for i in range(corpora)]
    blender = Blender(Mixture(runs), CRITERIA["ean"], "applied", Fraction(1, 2))
    fair = fair_blend(blender)
    rivals = [np.full(corpora, 1.0), *np.eye(corpora)]
    assert min(fair.coverage) >= max(blender.coverage(rival).min() for rival in rivals)
    assert min(fair.coverage) > blender.coverage(np.full(corpora, 1.0)).min()


def test_a_weight_of_zero_leaves_a_corpus_out(demo):
    alone = Mixture([demo.runs[1]]).table([1.0])
    mixed = demo.table([0.0, 2.0, 0.0])
    np.testing.assert_allclose(mixed["applied_g1_f1"], alone["applied_g1_f1"], rtol=1e-13)
    np.testing.assert_allclose(mixed["vector_sum_sq"], alone["vector_sum_sq"], rtol=1e-12)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(weights=st.tuples(*[st.floats(0.01, 100)] * 3), factor=st.floats(0.01, 100))
def test_only_the_proportion_of_the_weights_counts(demo, weights, factor):
    scaled = [weight * factor for weight in weights]
    for name in ("mone", "frequency"):
        scores = [CRITERIA[name].score(demo.table(given), "applied") for given in (weights, scaled)]
        np.testing.assert_allclose(scores[0], scores[1], rtol=1e-9)


def test_what_cannot_be_blended_is_said(demo):
    with pytest.raises(StatsError, match="Every weight of the blend is 0"):
        demo.table([0, 0, 0])
    with pytest.raises(StatsError, match=r"weight -1\.0 of demo-prose must be >= 0"):
        demo.table([1, -1, 0])
    with pytest.raises(CriterionError, match="AIMER reads no calibration corpus"):
        Blender(demo, CRITERIA["aimer"], "applied", Fraction(1, 2))
