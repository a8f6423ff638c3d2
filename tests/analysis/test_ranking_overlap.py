"""Rankings, overlaps, coverage against sorting, sets and exact fractions."""

import math
from fractions import Fraction
from itertools import combinations, product

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from analysis.criteria import CRITERIA, RANKABLE, get_criterion, unified
from analysis.demo.listing import DEMO_CORPORA
from analysis.errors import CriterionError, PlanError, StatsError
from analysis.files.shipped import SHIPPED_STATS
from analysis.numbers.sparsity import num_removed, parse_sparsity
from analysis.ranking.coverage import Blender, coverage, fair_blend
from analysis.ranking.experts import keeping_order, rank_experts, rank_of, saliency_grid
from analysis.ranking.overlap import (
    OVERLAP_COLUMNS,
    chance_overlap,
    criterion_overlap,
    kept_counts,
    mean_overlaps,
    pruned_mask,
    pruned_masks,
    set_overlap,
    symmetric_overlaps,
    variant_overlaps,
)
from analysis.stats.blend import Mixture
from analysis.stats.store import StatsStore
from builders.statistics import grid_of, random_stats

COUNTS = (7, 5, 6)
FREQUENCY = CRITERIA["frequency"]


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


def test_absent_experts_come_last():
    saliency = np.array([[1.0, np.nan, 2.0], [-5.0, -7.0, np.nan]])
    order = keeping_order(saliency)
    assert order.tolist() == [[2, 0, 1], [0, 1, 2]]
    assert rank_of(order).tolist() == [[1, 2, 0], [0, 1, 2]]


def test_the_grid_has_nan_where_there_is_no_expert():
    stats = random_stats(2, counts=COUNTS)
    grid = saliency_grid(CRITERIA["man"], stats, "applied")
    assert grid.shape == (3, 7)
    assert np.isnan(grid).tolist() == [[False] * 7, [False] * 5 + [True] * 2, [False] * 6 + [True]]
    scores = CRITERIA["man"].score(stats.table, "applied")
    assert np.array_equal(grid[stats.grid.present], scores)


def test_a_constant_variant_cannot_rank():
    with pytest.raises(CriterionError, match="every expert the same score"):
        rank_experts(unified(1, 0, 0), random_stats(1), "applied")


@pytest.mark.parametrize("sparsity", ["0.2", "0.5", "0.85"])
@pytest.mark.parametrize("counts", [(6, 6), COUNTS], ids=["equal", "different"])
def test_pruned_sets_and_overlap_equal_python_sets(counts, sparsity):
    a, b = random_stats(21, counts=counts), random_stats(22, counts=counts)
    exact = parse_sparsity(sparsity)
    first, second = (pruned_by_hand(stats, "g0_f1", sparsity) for stats in (a, b))
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


@pytest.mark.parametrize("num_texts", [2, 3])
def test_chance_is_the_mean_overlap_of_all_choices_of_sets(num_texts):
    # Two layers, of 5 and 4 experts, at 50%: 2 of 5 and 2 of 4. All pairs or triples, counted.
    means = []
    for n, r in ((5, 2), (4, 2)):
        sets = [set(s) for s in combinations(range(n), r)]
        choices = product(sets, repeat=num_texts)
        means.append(np.mean([len(set.intersection(*chosen)) / r for chosen in choices]))
    assert chance_overlap(grid_of(5, 4), Fraction(1, 2), num_texts) == pytest.approx(np.mean(means))


def test_chance_leaves_out_layers_that_lose_nothing():
    # At 25% a layer of 3 experts loses none, one of 8 loses 2.
    assert chance_overlap(grid_of(8, 3), Fraction(1, 4)) == 0.25
    none = np.zeros((2, 8), dtype=bool)
    some = none.copy()
    some[0, :2] = True
    assert set_overlap(some, some) == 1.0
    assert np.isnan(set_overlap(none, none))
    assert np.isnan(chance_overlap(grid_of(3, 3), Fraction(1, 4)))


def test_the_overlap_map_has_every_variant_and_pair():
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
    unnamed = criterion_overlap(CRITERIA["mone"], stats, "applied", half)
    assert unnamed[["b", "alpha", "beta"]].isna().all(axis=None)
    assert len(mean_overlaps(unnamed)) == 1
    again = criterion_overlap(CRITERIA["reap"], stats, "applied", half)
    pd.testing.assert_frame_equal(one.reset_index(drop=True), again)


def test_runs_of_different_models_are_not_compared():
    stats = {"a": random_stats(1), "b": random_stats(2, identity="other")}
    with pytest.raises(StatsError, match="different models"):
        criterion_overlap(FREQUENCY, stats, "applied", Fraction(1, 2))


# Few values, so that there are ties.
saliencies = st.lists(st.integers(-3, 3).map(float), min_size=2, max_size=16)
fractions = st.fractions(0, Fraction(99, 100), max_denominator=200)


@given(saliencies, fractions)
def test_what_is_pruned_is_the_end_of_pythons_sort(values, sparsity):
    """Of equal ones the lower stays, so that more sparsity prunes a superset."""
    mask = pruned_mask(np.array([values]), grid_of(len(values)), sparsity)[0]
    order = sorted(range(len(values)), key=lambda expert: (-values[expert], expert))
    keep = len(values) - math.floor(sparsity * len(values))
    assert np.flatnonzero(mask).tolist() == sorted(order[keep:])


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
    return Mixture([runs[name] for name, text in DEMO_CORPORA.items() if text.is_usual])


@pytest.mark.parametrize(("name", "sparsity"), [("frequency", "0.25"), ("mone", "0.5")])
def test_a_fair_blend_is_no_worse_than_the_grid(demo, name, sparsity):
    blender = Blender(demo, get_criterion(name), "applied", Fraction(sparsity))
    fair = fair_blend(blender)
    assert sum(fair.weights) == pytest.approx(1)
    assert list(fair.coverage) == blender.coverage(fair.weights).tolist()
    points = [(a, b, 20 - a - b) for a, b in product(range(21), repeat=2) if a + b <= 20]
    best = max(min(blender.coverage(np.divide(point, 20))) for point in [*points, (20, 20, 20)])
    assert min(fair.coverage) >= best - 1e-12


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


@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(weights=st.tuples(*[st.floats(0.01, 100)] * 3), factor=st.floats(0.01, 100))
def test_only_the_proportion_of_the_weights_counts(demo, weights, factor):
    scaled = [weight * factor for weight in weights]
    for name in ("mone", "frequency"):
        scores = [CRITERIA[name].score(demo.table(given), "applied") for given in (weights, scaled)]
        np.testing.assert_allclose(scores[0], scores[1], rtol=1e-9)


def test_what_cannot_be_blended_is_said(demo):
    with pytest.raises(StatsError, match="Every weight of the blend is 0"):
        demo.table([0, 0, 0])
    with pytest.raises(StatsError, match=r"weight -1\.0 of demo-stories must be >= 0"):
        demo.table([1, -1, 0])
    with pytest.raises(CriterionError, match="AIMER reads no calibration corpus"):
        Blender(demo, CRITERIA["aimer"], "applied", Fraction(1, 2))


def test_the_matrix_is_symmetric_with_ones_on_the_diagonal():
    stats = {name: random_stats(seed) for seed, name in enumerate("xyz")}
    table = criterion_overlap(CRITERIA["seer"], stats, "renormalized", Fraction(1, 2))
    matrix = symmetric_overlaps(table, list(stats)).pivot_table(
        index="corpus_a", columns="corpus_b", values="overlap", aggfunc="sum"
    )
    assert matrix.shape == (3, 3)
    assert np.array_equal(matrix.to_numpy(), matrix.to_numpy().T)
    assert np.diag(matrix).tolist() == [1.0] * 3
    pair = table[(table["corpus_a"] == "x") & (table["corpus_b"] == "z")]
    assert matrix.loc["z", "x"] == pair["overlap"].item()


def test_0_55_of_60_experts_removes_33():
    # In floating point 60 - int(60 * (1 - 0.55)) would be 34, for 1 - 0.55 < 0.45.
    assert 60 - int(60 * (1 - 0.55)) == 34
    assert num_removed(60, parse_sparsity("0.55")) == 33
    assert num_removed(100, parse_sparsity("0.29")) == 29  # 100 * 0.29 = 28.999999999999996
    assert kept_counts(grid_of(60, 20), parse_sparsity("55%")).tolist() == [27, 9]


@given(st.integers(0, 9_999), st.integers(1, 512))
def test_the_number_removed_is_the_floor_of_the_exact_product(digits, num_experts):
    text = f"0.{digits:04d}"
    exact = Fraction(digits, 10_000)
    assert parse_sparsity(text) == exact
    assert parse_sparsity(f"{digits / 100:.2f}%") == exact
    removed = num_removed(num_experts, exact)
    assert removed <= exact * num_experts < removed + 1


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0", Fraction(0)),
        ("0.5", Fraction(1, 2)),
        (" 50 % ", Fraction(1, 2)),
        ("12.5%", Fraction(1, 8)),
        ("5e-1", Fraction(1, 2)),
        (".25", Fraction(1, 4)),
        (Fraction(1, 3), Fraction(1, 3)),
    ],
)
def test_sparsity_is_read_exactly(text, value):
    assert parse_sparsity(text) == value


@pytest.mark.parametrize(
    ("text", "message"),
    [
        *((text, f"'{text}' is not a number; write") for text in ("half", "", "%", "0,5")),
        # Exactly, the last two are a gigabyte of digits.
        *((text, "between 0 and 1") for text in ("nan", "-inf", "1e-999999999", "1e999999999%")),
        *((text, f"'{text}' is out of range.*50%") for text in ("1", "100%", "50", "-0.1")),
        (Fraction(3, 2), "'3/2' is out of range"),
    ],
)
def test_what_is_no_sparsity_says_what_works(text, message):
    with pytest.raises(PlanError, match=message) as caught:
        parse_sparsity(text)
    assert "\n" not in str(caught.value)
