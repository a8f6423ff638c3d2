"""Rankings, overlaps, sparsity and stratification against sorting, sets and exact fractions."""

from fractions import Fraction
from itertools import combinations

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis.criteria import CRITERIA, RANKABLE, get_criterion, unified
from analysis.errors import CriterionError, StatsError
from analysis.families import MoELayer
from analysis.ranking.experts import order_of, rank_experts, rank_of, saliency_grid
from analysis.ranking.overlap import (
    OVERLAP_COLUMNS,
    all_way_overlap,
    chance_overlap,
    criterion_overlap,
    mean_overlaps,
    pruned_mask,
    pruned_masks,
    set_overlap,
    variant_overlaps,
)
from analysis.ranking.stratification import rescale, separation
from analysis.sparsity import parse_sparsity
from analysis.stats.grid import Grid
from analysis.stats.tables import WeightStats

COUNTS = (7, 5, 6)
FREQUENCY = CRITERIA["frequency"]


def grid_of(*counts):
    return Grid(tuple(MoELayer(3 + 4 * i, count, 2) for i, count in enumerate(counts)))


def pruned_by_hand(stats, column, sparsity):
    """{layer: set of pruned experts}: Python's sort, lower index kept first on ties."""
    pruned = {}
    for layer, rows in stats.table.groupby("layer"):
        by_worth = sorted(zip(-rows[column], rows["expert"], strict=True))
        keep = len(rows) - int(Fraction(sparsity) * len(rows))
        pruned[layer] = {expert for _, expert in by_worth[keep:]}
    return pruned


def as_sets(mask, stats):
    return {
        layer.index: {int(expert) for expert in np.flatnonzero(row)}
        for layer, row in zip(stats.layers, mask, strict=True)
    }


@pytest.mark.parametrize("name", ["reap", "mone", "0,2,1", "frequency"])
def test_a_ranking_equals_pythons_sort(random_stats, name):
    stats = random_stats(11, counts=COUNTS)
    ranking = rank_experts(get_criterion(name), stats, "renormalized")
    for _, rows in ranking.groupby("layer"):
        pairs = sorted(zip(-rows["saliency"], rows["expert"], strict=True))
        by_hand = [expert for _, expert in pairs]
        assert rows.sort_values("rank")["expert"].tolist() == by_hand
        assert sorted(rows["rank"]) == list(range(len(rows)))


def test_absent_experts_come_last():
    saliency = np.array([[1.0, np.nan, 2.0], [-5.0, -7.0, np.nan]])
    order = order_of(saliency)
    assert order.tolist() == [[2, 0, 1], [0, 1, 2]]
    assert rank_of(order).tolist() == [[1, 2, 0], [0, 1, 2]]


def test_the_grid_has_nan_where_there_is_no_expert(random_stats):
    stats = random_stats(2, counts=COUNTS)
    grid = saliency_grid(CRITERIA["man"], stats, "applied")
    assert grid.shape == (3, 7)
    assert np.isnan(grid).tolist() == [[False] * 7, [False] * 5 + [True] * 2, [False] * 6 + [True]]
    scores = CRITERIA["man"].score(stats.table, "applied")
    assert np.array_equal(grid[stats.grid.present], scores)


def test_what_cannot_rank_is_refused(random_stats, make_manifest):
    stats = random_stats(1)
    with pytest.raises(CriterionError, match="the same for every expert"):
        rank_experts(unified(1, 0, 0), stats, "applied")
    with pytest.raises(CriterionError, match=r"AIMER needs weight statistics; run `moeprune wei"):
        rank_experts(CRITERIA["aimer"], stats, "applied")
    table = stats.table[["layer", "expert"]].assign(projection="up", l1=1.0, l2_squared=1, numel=4)
    weights = WeightStats(make_manifest(kind="weights"), table)
    with pytest.raises(CriterionError, match="REAP needs calibration statistics"):
        rank_experts(CRITERIA["reap"], weights, "applied")
    # Random reads neither.
    assert len(rank_experts(CRITERIA["random"], weights, "applied")) == 8
    assert len(rank_experts(CRITERIA["random"], stats, "applied")) == 8


@pytest.mark.parametrize("sparsity", ["0.2", "0.5", "0.85"])
@pytest.mark.parametrize("counts", [(6, 6), COUNTS], ids=["equal", "different"])
def test_pruned_sets_and_overlap_equal_python_sets(random_stats, counts, sparsity):
    a, b = random_stats(21, counts=counts), random_stats(22, counts=counts)
    exact = parse_sparsity(sparsity)
    first, second = (pruned_by_hand(each, "g0_f1", sparsity) for each in (a, b))
    masks = pruned_masks(CRITERIA["ean"], {"a": a, "b": b}, "applied", exact)
    assert as_sets(masks["a"], a) == first
    assert as_sets(masks["b"], b) == second

    table = criterion_overlap(CRITERIA["ean"], {"a": a, "b": b}, "applied", exact)
    shares = [len(first[k] & second[k]) / len(first[k]) for k in first if first[k]]
    (row,) = table.to_dict("records")
    assert tuple(table.columns) == OVERLAP_COLUMNS
    assert row["overlap"] == pytest.approx(sum(shares) / len(shares))
    assert (row["criterion"], row["b"], row["alpha"], row["beta"]) == ("ean", 0, 0, 1)
    assert (row["corpus_a"], row["corpus_b"]) == ("a", "b")
    assert row["sparsity"] == float(exact)


def test_chance_is_the_mean_overlap_of_all_pairs_of_sets():
    # Two layers, of 5 and 4 experts, at 50%: 2 of 5 and 2 of 4. All pairs of sets, counted.
    grid = grid_of(5, 4)
    means = []
    for n, r in ((5, 2), (4, 2)):
        sets = [set(s) for s in combinations(range(n), r)]
        means.append(np.mean([len(a & b) / r for a in sets for b in sets]))
    assert chance_overlap(grid, Fraction(1, 2)) == pytest.approx(np.mean(means))


def test_chance_leaves_out_layers_that_lose_nothing():
    # At 25% a layer of 3 experts loses none, one of 8 loses 2.
    assert chance_overlap(grid_of(8, 3), Fraction(1, 4)) == 0.25
    none = np.zeros((2, 8), dtype=bool)
    some = none.copy()
    some[0, :2] = True
    assert set_overlap(some, some) == 1.0
    assert np.isnan(set_overlap(none, none))
    assert np.isnan(chance_overlap(grid_of(3, 3), Fraction(1, 4)))


def test_all_way_overlap_by_hand():
    # Layer one: {0,1}, {1,2}, {1,3} share {1}: 1/2. Layer two: all the same: 1.
    rows = [[(0, 1), (2, 3)], [(1, 2), (2, 3)], [(1, 3), (2, 3)]]
    masks = np.zeros((3, 2, 4), dtype=bool)
    for corpus, layers in enumerate(rows):
        for layer, experts in enumerate(layers):
            masks[corpus, layer, list(experts)] = True
    assert all_way_overlap(list(masks)) == 0.75
    assert all_way_overlap([masks[0]]) == 1.0


def test_the_overlap_map_has_every_variant_and_pair(random_stats):
    stats = {name: random_stats(seed, counts=COUNTS) for seed, name in enumerate("xyz")}
    half = Fraction(1, 2)
    table = variant_overlaps(stats, "applied", half)
    assert len(table) == 17 * 3
    found = set(table[["b", "alpha", "beta"]].itertuples(index=False, name=None))
    assert found == set(RANKABLE)
    assert table["overlap"].between(0, 1).all()
    assert set(zip(table["corpus_a"], table["corpus_b"], strict=True)) == set(
        combinations("xyz", 2)
    )
    means = mean_overlaps(table)
    assert len(means) == 17
    one = table[table["criterion"] == "reap"]
    assert means.set_index("criterion")["overlap"]["reap"] == pytest.approx(one["overlap"].mean())
    again = criterion_overlap(CRITERIA["reap"], stats, "applied", half)
    pd.testing.assert_frame_equal(one.reset_index(drop=True), again)


def test_runs_of_different_models_are_not_compared(random_stats):
    stats = {"a": random_stats(1), "b": random_stats(2, identity="other")}
    with pytest.raises(StatsError, match="different models"):
        criterion_overlap(FREQUENCY, stats, "applied", Fraction(1, 2))


saliencies = st.lists(st.integers(-3, 3).map(float), min_size=2, max_size=16)
fractions = st.fractions(0, Fraction(99, 100), max_denominator=200)


@given(saliencies, fractions)
def test_what_is_kept_is_worth_at_least_what_is_pruned(values, sparsity):
    mask = pruned_mask(np.array([values]), grid_of(len(values)), sparsity)[0]
    kept = [value for value, gone in zip(values, mask, strict=True) if not gone]
    pruned = [value for value, gone in zip(values, mask, strict=True) if gone]
    assert not pruned or min(kept) >= max(pruned)


def test_a_constant_layer_is_flat_with_gap_zero_and_band_one():
    saliency = np.array([[7.0, 7.0, 7.0, 7.0], [-0.1, -0.1, -0.1, np.nan]])
    assert rescale(saliency)[0].tolist() == [0.0] * 4
    table = separation(saliency, grid_of(4, 3), np.array([2, 1]))
    assert table["gap"].tolist() == [0.0, 0.0]
    assert table["boundary"].tolist() == [0.0, 0.0]
    assert table["band"].tolist() == [1.0, 1.0]
    assert not table.isna().any(axis=None)


def test_a_layer_that_loses_nothing_has_no_boundary():
    (row,) = separation(np.array([[3.0, 1.0]]), grid_of(2), np.array([2])).to_dict("records")
    assert np.isnan(row["gap"])
    assert np.isnan(row["boundary"])
    assert row["band"] == 0.0


@given(st.lists(st.integers(-50, 50).map(float), min_size=2, max_size=12), st.data())
def test_separation_equals_the_definition(values, data):
    count = data.draw(st.integers(1, len(values) - 1))
    low, high = min(values), max(values)
    if low == high:
        v = [Fraction(0)] * len(values)
    else:
        v = sorted((Fraction(int(x - low), int(high - low)) for x in values), reverse=True)
    gap, boundary = v[count - 1] - v[count], (v[count - 1] + v[count]) / 2
    distances = [abs(x - boundary) for x in v]
    table = separation(np.array([values]), grid_of(len(values)), np.array([count]))
    (row,) = table.to_dict("records")
    assert row["gap"] == pytest.approx(float(gap), abs=1e-12)
    assert row["boundary"] == pytest.approx(float(boundary), abs=1e-12)
    # Exactly 0.05 may fall on either side in floating point.
    sure = sum(d < Fraction(1, 20) for d in distances) / len(v)
    most = sum(d <= Fraction(1, 20) for d in distances) / len(v)
    assert sure <= row["band"] <= most
