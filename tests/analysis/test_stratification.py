"""How far apart a criterion puts the experts of a layer, against random weights; by hand."""

from fractions import Fraction

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis.criteria import CRITERIA
from analysis.numbers.arrays import rescale
from analysis.ranking.stratification import (
    random_gaps,
    random_separation,
    random_weights,
    relative,
    separation,
    signed_score,
)
from analysis.stats.tables import WeightStats
from builders.statistics import grid_of, run_manifest

SIZES = {"gate": 300, "up": 300, "down": 500}
SCALES = {"gate": 0.02, "up": 0.03, "down": 0.05}


def weights_of(drawn):
    """Statistics of (projection, experts, weights) arrays of one layer, summed in float64."""
    count = len(next(iter(drawn.values())))
    manifest = run_manifest((count,), (), kind="weights")
    rows = [
        {
            "layer": 3,
            "expert": expert,
            "projection": name,
            "l1": np.abs(weights[expert]).sum(),
            "l2_squared": np.square(weights[expert]).sum(),
            "numel": weights.shape[1],
        }
        for expert in range(count)
        for name, weights in drawn.items()
    ]
    return WeightStats(manifest, pd.DataFrame(rows))


@given(st.lists(st.integers(-50, 50).map(float), min_size=2, max_size=12), st.data())
def test_separation_equals_the_definition(values, data):
    count = data.draw(st.integers(1, len(values) - 1))
    exact = sorted((Fraction(int(value)) for value in values), reverse=True)
    mean = sum(exact) / len(exact)
    (row,) = separation(np.array([values]), grid_of(len(values)), [count]).to_dict("records")
    assert row["layer"] == 3
    if exact[0] == exact[-1]:
        assert (row["spread"], row["gap"]) == (0, 0)
    elif mean:
        assert row["spread"] == pytest.approx(float((exact[0] - exact[-1]) / abs(mean)))
        gap = float((exact[count - 1] - exact[count]) / abs(mean))
        assert row["gap"] == pytest.approx(gap, abs=1e-9)


def test_a_constant_layer_is_flat_whatever_its_number():
    # The mean of 0.1 three times is not 0.1.
    saliency = np.array([[7.0, 7.0, 7.0, 7.0], [-0.1, -0.1, -0.1, np.nan], [0.0, 0.0, 0.0, 0.0]])
    assert rescale(saliency)[0].tolist() == [0.0] * 4
    assert relative(saliency)[2].tolist() == [0.0] * 4
    table = separation(saliency, grid_of(4, 3, 4), [2, 1, 2])
    assert table["spread"].tolist() == table["gap"].tolist() == [0.0] * 3


def test_absent_experts_count_for_nothing_and_a_layer_that_loses_none_has_no_gap():
    saliency = np.array([[4.0, 2.0, 1.0, 1.0], [5.0, 4.0, 0.0, np.nan]])
    assert np.isnan(rescale(saliency)[1, 3])
    table = separation(saliency, grid_of(4, 3), [4, 1])
    # Means 2 and 3.
    assert table["spread"].tolist() == pytest.approx([1.5, 5 / 3])
    assert np.isnan(table["gap"][0])
    other = separation(saliency, grid_of(4, 3), [2, 1], np.array([[2, 0, 1, 3], [0, 1, 2, -1]]))
    # Expert 0 is the last kept, 1 the first removed.
    assert other["gap"].tolist() == pytest.approx([(4 - 2) / 2, 1 / 3])
    assert table["gap"][1] == pytest.approx(1 / 3)


@pytest.mark.parametrize("name", ["aimer", "magnitude", "hoyer"])
def test_random_weights_score_as_normal_weights_that_are_drawn(name):
    rng = np.random.default_rng(7)
    shape = {key: (4000, size) for key, size in SIZES.items()}
    drawn = weights_of({key: SCALES[key] * rng.standard_normal(shape[key]) for key in SIZES})
    criterion = CRITERIA[name]
    expected = signed_score(criterion, drawn)[0]
    made = signed_score(criterion, random_weights(drawn, 1))[0]
    # Of 4000 experts: the mean is known to 1/63 of the deviation, the deviation to 1/89 of itself.
    assert made.mean() == pytest.approx(expected.mean(), abs=0.1 * expected.std())
    assert made.std() == pytest.approx(expected.std(), rel=0.06)
    ends = np.quantile(expected, [0.01, 0.5, 0.99]), np.quantile(made, [0.01, 0.5, 0.99])
    np.testing.assert_allclose(*ends, atol=0.3 * expected.std())


@pytest.mark.parametrize("name", ["aimer", "magnitude"])
def test_the_separation_of_random_weights_is_that_of_layers_that_are_drawn(name):
    rng = np.random.default_rng(11)
    criterion, found = CRITERIA[name], []
    for _ in range(60):
        layer = {key: SCALES[key] * rng.standard_normal((16, size)) for key, size in SIZES.items()}
        stats = weights_of(layer)
        found.append(separation(signed_score(criterion, stats), stats.grid, [8]))
    spread, gap = (
        np.mean([measured[column][0] for measured in found]) for column in ("spread", "gap")
    )
    made = random_separation(criterion, stats, (8,))
    # Spreads of 16 vary by a fifth of themselves, of which 20 and 60 are averaged; gaps by all.
    assert made["spread"][0] == pytest.approx(spread, rel=0.2)
    assert made["gap"][0] == pytest.approx(gap, rel=0.8)
    assert random_separation(criterion, stats, (8,)).equals(made)


def test_random_weights_have_the_shapes_and_scales_of_each_layer():
    rng = np.random.default_rng(3)
    stats = weights_of({key: rng.standard_normal((5, size)) for key, size in SIZES.items()})
    louder = stats.table.assign(l2_squared=stats.table["l2_squared"] * 9)
    made = random_weights(WeightStats(stats.manifest, louder), 0).table
    assert made["numel"].tolist() == stats.table["numel"].tolist()
    assert (made["l1"] / made["numel"]).mean() == pytest.approx(3 * np.sqrt(2 / np.pi), rel=0.05)
    zero = random_weights(WeightStats(stats.manifest, stats.table.assign(l2_squared=0.0)), 0).table
    assert not zero[["l1", "l2_squared"]].any(axis=None)


def test_gaps_of_random_weights_at_every_cut_are_those_of_one():
    drawn = {
        name: np.random.default_rng(size).normal(0, SCALES[name], (8, size))
        for name, size in SIZES.items()
    }
    stats = weights_of(drawn)
    for criterion in (CRITERIA["aimer"], CRITERIA["magnitude"]):
        gaps = random_gaps(criterion, stats)
        assert gaps.shape == (1, 7)
        for count in (1, 4, 7):
            (row,) = random_separation(criterion, stats, [count]).to_dict("records")
            assert gaps[0, count - 1] == pytest.approx(row["gap"], rel=1e-9)
