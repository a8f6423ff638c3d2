"""Comparisons, component effects and advice, by hand and by brute force."""

from fractions import Fraction
from math import isnan, nan

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import kendalltau

from analysis.criteria import RANKABLE, unified
from analysis.errors import StatsError
from analysis.families.base import MoELayer
from analysis.ranking.advice import read_overlaps
from analysis.ranking.compare import COMPARISON_COLUMNS, Comparison, CriterionDecision, kendall_tau
from analysis.ranking.overlap import (
    effects_over_models,
    exponent_effects,
    pruned_mask,
)
from analysis.stats.grid import Grid

HALF, QUARTER = Fraction(1, 2), Fraction(1, 4)
# Layer 2 has four experts, layer 5 two, so that two places stay empty.
GRID = Grid((MoELayer(2, 4, 1), MoELayer(5, 2, 1)))
FIRST = np.array([[4.0, 3.0, 2.0, 1.0], [1.0, 2.0, nan, nan]])
SECOND = np.array([[4.0, 1.0, 3.0, 2.0], [1.0, 2.0, nan, nan]])


def decided(grid, saliency, sparsity):
    return CriterionDecision(grid, saliency, pruned_mask(saliency, grid, sparsity))


def by_hand():
    # A keeps 0, 1 of layer 2; B keeps 0, 2. In layer 5 both keep 1.
    return Comparison(decided(GRID, FIRST, HALF), decided(GRID, SECOND, HALF))


def test_numbers_by_hand():
    made = by_hand()
    assert [made.count(fate) for fate in ("both", "only A", "only B", "neither")] == [2, 1, 1, 2]
    assert made.agreement == 4 / 6
    assert made.disagreements()["expert"].tolist() == [1, 2]  # widest apart first
    # Pruned by both: 3 of layer 2, 0 of layer 5. By either: 1, 2, 3 and 0.
    assert made.jaccard == 2 / 4
    # Pairs of layer 2 in A's order: 01, 02, 03, 23 as in A; 12 and 13 turned: (4 - 2) / 6.
    assert made.by_layer["kendall_tau"].tolist() == pytest.approx([1 / 3, 1])
    assert made.kendall_tau == pytest.approx(2 / 3)
    assert made.by_layer["agreement"].tolist() == [0.5, 1]
    assert made.by_layer["jaccard"].tolist() == pytest.approx([1 / 3, 1])
    assert made.by_layer["layer"].tolist() == [2, 5]
    # Half is kept on either side, so two random choices agree on half.
    assert made.chance_agreement == 0.5


def test_table_by_hand():
    table = by_hand().table()
    assert list(table) == list(COMPARISON_COLUMNS)
    assert table["kept_by"].tolist() == ["both", "only A", "only B", "neither", "neither", "both"]
    assert table["rank_a"].tolist() == [0, 1, 2, 3, 1, 0]
    assert table["rank_b"].tolist() == [0, 3, 1, 2, 1, 0]
    assert table["saliency_b"].tolist() == [4, 1, 3, 2, 1, 2]


def test_nothing_pruned_has_no_jaccard_and_full_agreement():
    nothing = decided(GRID, FIRST, Fraction(0))
    made = Comparison(nothing, nothing)
    assert made.agreement == 1
    assert isnan(made.jaccard)
    assert made.by_layer["jaccard"].isna().all()
    assert made.disagreements().empty


def test_a_layer_without_an_order_is_left_out_of_the_mean():
    flat = FIRST.copy()
    flat[0, :] = 7
    made = Comparison(decided(GRID, flat, HALF), decided(GRID, SECOND, HALF))
    assert np.isnan(made.by_layer["kendall_tau"][0])
    assert made.kendall_tau == 1


def test_other_layers_are_refused():
    other = Grid((MoELayer(2, 4, 1), MoELayer(6, 2, 1)))
    with pytest.raises(StatsError, match="different models"):
        Comparison(decided(GRID, FIRST, HALF), decided(other, FIRST, HALF))


# Few values, so that there are ties.
ROWS = st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), min_size=2, max_size=20)


@given(ROWS)
def test_kendall_tau_is_scipys(rows):
    first, second = np.array(rows, dtype=float).T
    expected = kendalltau(first, second).statistic
    assert kendall_tau(first, second) == pytest.approx(expected, nan_ok=True)


def test_effects_by_hand():
    means = pd.DataFrame(
        [(0, 0, 0, 0.2), (0, 1, 0, 0.4), (1, 1, 1, 0.9)], columns=["b", "alpha", "beta", "overlap"]
    )
    table = exponent_effects(means).set_index(["component", "value"])
    assert table.loc[("b", 0), "overlap"] == pytest.approx(0.3)
    assert table.loc[("b", 1), "overlap"] == pytest.approx(0.9)
    assert table.loc[("alpha", 1)].tolist() == pytest.approx([0.65, 0.4, 0.9, 2])
    assert ("beta", 2) not in table.index


def test_effects_over_models_by_hand():
    # Two models that differ in two variants only: every model counts the same.
    rows = [(0, 0, 1), (1, 0, 1)]
    one, two = (
        pd.DataFrame(rows, columns=["b", "alpha", "beta"]).assign(overlap=overlaps)
        for overlaps in ((0.2, 0.6), (0.4, 1.0))
    )
    table = effects_over_models([one, two]).set_index(["component", "value"])
    assert table.loc[("b", 0), "overlap"] == pytest.approx(0.3)
    assert table.loc[("b", 1), "overlap"] == pytest.approx(0.8)
    assert table.loc[("alpha", 0)].tolist() == pytest.approx([0.55, 0.2, 1.0, 4])
    alone = effects_over_models([one])
    assert alone.equals(exponent_effects(one))


def means(**changes):
    """Overlap 0.5 for every variant but those named, by criterion."""
    names = [unified(*exponents).name for exponents in RANKABLE]
    return pd.DataFrame(
        {
            "criterion": names,
            "overlap": [changes.get(name.replace("-", "_"), 0.5) for name in names],
        }
    )


def test_agnostic_is_borne_out_where_one_of_them_depends_least():
    reading = read_overlaps("agnostic", means(msan=0.9, man=0.4))
    assert reading.agrees
    assert "MSAN depends on the corpus least, which is the paper's choice" in reading.sentence
    assert reading.table["recommended"].sum() == 2
    assert reading.table.iloc[0][["criterion", "place"]].tolist() == ["msan", 1]
    reading = read_overlaps("agnostic", means(frequency=0.9, man=0.8, msan=0.7))
    assert not reading.agrees
    assert "Frequency depends on the corpus least, which is not the paper's" in reading.sentence
    assert "MAN 0.80 (place 2 of 17), MSAN 0.70 (place 3 of 17)" in reading.sentence


@pytest.mark.parametrize(
    ("second", "agrees", "words"), [(0.4, True, "more than"), (0.6, False, "no more than")]
)
def test_specific_needs_both_below_the_median(second, agrees, words):
    reading = read_overlaps("specific", means(gate_ean=0.3, squared_gate_energy=second))
    assert reading.agrees is agrees
    assert f"follows the corpus {words} the median" in reading.sentence


def test_unlike_sparsities():
    # A keeps 3 and 2 (a quarter of two is none), B 2 and 1.
    made = Comparison(decided(GRID, FIRST, QUARTER), decided(GRID, SECOND, HALF))
    assert [made.count(fate) for fate in ("both", "only A", "only B", "neither")] == [3, 2, 0, 1]
    # Layer 2: 1 * 2 + 3 * 2 of 4; layer 5: 0 * 1 + 2 * 1 of 2.
    assert made.chance_agreement == pytest.approx((8 / 4 + 2 / 2) / 6)
