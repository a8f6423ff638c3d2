"""Criteria: one conformance class for all of them, and the numbers by hand.

A new criterion adds a row to `ROWS`, and its eight scores by hand to tests/golden/test_criteria.py.
"""

import math
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from permanent_names import EXPONENTS

from analysis.criteria import CRITERIA, RANKABLE, VARIANTS, get_criterion, unified
from analysis.criteria.heapr import camera_p
from analysis.criteria.weight_based import zero_experts
from analysis.errors import CriterionError
from analysis.ranking.experts import rank_experts
from analysis.stats.columns import GATES, OPTIONAL_COLUMNS
from analysis.stats.tables import ExpertStats, WeightStats
from builders.statistics import random_stats, run_manifest, stats_of

FAMILY = "arXiv:2606.15716, Table 1"
CAMERA = "HEAPr, section 4.2; arXiv:2508.02322"
SQUARES, MONE = "applied_g2_f2 num_tokens", "num_tokens g0_f2 applied_g1_f0 vector_sum_sq"
PATHS, WEIGHTS = "path_samples path_weight node_weight", "l1 l2_squared numel"
# Name, label, reference, columns with applied gates, source, and what else holds: `gate` weights
# count, the `larger` go, it ranks `neurons`, and these only `within` a layer, it reads `samples`;
# twice the statistics give twice the score (`sum`) or the same (`mean`).
ROWS = [
    ("frequency", "Frequency", FAMILY, "num_tokens", "routed", "sum"),
    ("seer", "SEER", FAMILY, "applied_g1_f0 num_tokens", "routed", "gate sum"),
    ("ean", "EAN", FAMILY, "g0_f1 num_tokens", "routed", "sum"),
    ("reap", "REAP", FAMILY, "applied_g1_f1 num_tokens", "routed", "gate mean"),
    ("man", "MAN", FAMILY, "g0_f1 num_tokens", "routed", "mean"),
    ("msan", "MSAN", FAMILY, "g0_f2 num_tokens", "routed", "mean"),
    ("gate-ean", "Gate-weighted EAN", FAMILY, "applied_g1_f1 num_tokens", "routed", "gate sum"),
    ("squared-gate-energy", "Squared-gate energy", FAMILY, SQUARES, "routed", "gate sum"),
    ("mone", "MoNE", "arXiv:2606.15716, Table 6", MONE, "routed", "gate"),
    ("damage", "Exact damage", "arXiv:2606.15716, Eq. 5-8", "damage num_tokens", "routed", "sum"),
    ("heapr", "HEAPr", "HEAPr, Eq. 15-16", "num_tokens neuron_product", "routed", "neurons"),
    ("camera-p", "CAMERA-P", CAMERA, "neuron_norm_sum neuron_peak_sum", "routed", "neurons within"),
    ("pathfinder", "MoE Pathfinder", "MoE Pathfinder, Eq. 1-12", PATHS, "routed", "samples"),
    ("aimer", "AIMER", "arXiv:2603.18492", WEIGHTS, "weights", "larger mean"),
    ("magnitude", "Magnitude", "arXiv:2603.18492", WEIGHTS, "weights", "mean"),
    ("hoyer", "Hoyer", "arXiv:2603.18492", WEIGHTS, "weights", ""),
    ("random", "Random", "baseline", "", "none", "neurons"),
]
# Statistics that are there and those that a criterion reads -> what a refusal says.
_LACKS = {
    (WeightStats, "routed"): ["needs calibration statistics, not weights alone."],
    (ExpertStats, "weights"): ["needs weight statistics; run `moeprune weights`."],
    (ExpertStats, "routed"): [f": {hint}." for hint in OPTIONAL_COLUMNS.values()],
}
BY_NAME = {name: rest for name, *_, rest in ROWS}
EVERY = (*CRITERIA.values(), *(unified(*variant) for variant in RANKABLE))
ALL = {criterion.name: criterion for criterion in EVERY}


def weight_table(*experts):
    """`layer, expert, l1, l2_squared, numel` of experts given as lists of weights."""
    return pd.DataFrame(
        {
            "layer": 3,
            "expert": range(len(experts)),
            "l1": [float(np.abs(w).sum()) for w in experts],
            "l2_squared": [float(np.square(w).sum()) for w in experts],
            "numel": [len(w) for w in experts],
        }
    )


def score(name, table, gate="applied"):
    return get_criterion(name).score(table, gate)


@pytest.fixture(params=ALL.values(), ids=ALL)
def criterion(request):
    return request.param


@pytest.fixture
def table(criterion):
    """What a criterion reads of seven experts; of tokens or weights one has none."""
    if criterion.source == "weights":
        rng = np.random.default_rng(3)
        return weight_table(*rng.normal(size=(6, 21)), np.zeros(21))
    table = random_stats(3, counts=(4, 3)).table
    if criterion.from_samples:
        rng = np.random.default_rng(4)
        values = rng.normal(size=(len(table), len(criterion.columns("applied"))))
        return table.assign(**dict(zip(criterion.columns("applied"), values.T, strict=True)))
    return table


def test_every_criterion_has_a_row_in_the_order_of_menus():
    assert [*CRITERIA] == [criterion.name for criterion in CRITERIA.values()] == [*BY_NAME]
    assert len({criterion.label for criterion in CRITERIA.values()}) == len(ROWS)


@pytest.mark.parametrize(("name", "label", "reference", "columns", "source", "rest"), ROWS)
def test_a_criterion_is_what_its_row_says(name, label, reference, columns, source, rest):
    criterion, read = get_criterion(name), tuple(columns.split())
    assert criterion is CRITERIA[name]
    assert (criterion.label, criterion.reference, criterion.source) == (label, reference, source)
    assert criterion.columns("applied") == read
    other = tuple(column.replace("applied", "renormalized") for column in read)
    assert criterion.columns("renormalized") == other
    holds = {
        "gate": criterion.uses_gate,
        "larger": criterion.prune_larger,
        "neurons": criterion.neuron_score is not None,
        "within": criterion.within_layers,
        "samples": criterion.from_samples is not None,
    }
    assert {word for word in holds if holds[word]} == set(rest.split()) - {"sum", "mean"}
    assert (criterion.order is not None) == ("samples" in rest)
    assert criterion.formula


@pytest.mark.parametrize("gate", GATES)
class TestCriterion:
    """What every criterion promises, the variants of the unified family too."""

    def test_it_reads_only_the_columns_it_declares(self, criterion, table, gate):
        whole = criterion.score(table, gate)
        alone = table[["layer", "expert", *criterion.columns(gate)]]
        assert np.array_equal(criterion.score(alone, gate), whole)

    def test_it_gives_one_finite_number_an_expert(self, criterion, table, gate):
        values = criterion.score(table, gate)
        assert values.shape == (len(table),)
        assert values.dtype == np.float64
        assert np.isfinite(values).all()

    def test_it_leaves_the_table_alone(self, criterion, table, gate):
        before = table.copy(deep=True)
        criterion.saliency(criterion.score(table, gate))
        if criterion.order:
            criterion.order(table)
        pd.testing.assert_frame_equal(table, before)

    def test_it_uses_the_gate_convention_exactly_if_it_says_so(self, criterion, table, gate):
        other = GATES[1 - GATES.index(gate)]
        differs = not np.array_equal(criterion.score(table, gate), criterion.score(table, other))
        assert differs == criterion.uses_gate
        assert (criterion.columns(gate) != criterion.columns(other)) == criterion.uses_gate

    def test_an_expert_without_tokens_has_saliency_zero(self, criterion, table, gate):
        # Of samples every expert is measured on every token, so none is without tokens.
        if criterion.source == "routed" and not criterion.from_samples:
            never = (table["num_tokens"] == 0).to_numpy()
            assert never.any()
            assert (criterion.saliency(criterion.score(table, gate))[never] == 0).all()

    def test_its_scores_follow_their_experts_and_equal_ones_tie(self, criterion, table, gate):
        scores, columns = criterion.score(table, gate), list(criterion.columns(gate))
        order = np.random.default_rng(5).permutation(len(table))
        moved = table.assign(**{name: table[name].to_numpy()[order] for name in columns})
        by_place = criterion.source == "none"  # draws, one an expert
        assert np.array_equal(criterion.score(moved, gate), scores if by_place else scores[order])
        equal = table.assign(**{name: table[name].iloc[0] for name in columns})
        assert (len(set(criterion.score(equal, gate))) == 1) != by_place

    def test_more_of_the_same_adds_to_sums_and_leaves_means(self, criterion, table, gate):
        if criterion.exponents:
            rest = "mean" if criterion.exponents[0] else "sum"
            assert rest in BY_NAME.get(criterion.name, rest).split()
        else:
            rest = BY_NAME[criterion.name]
        times = {"sum": 2, "mean": 1}.get(rest.split()[-1] if rest else "")
        if times is None:
            pytest.skip("its score is no sum and no mean of its columns")
        columns = list(criterion.columns(gate))
        twice = criterion.score(table.assign(**(2 * table[columns])), gate)
        np.testing.assert_allclose(twice, times * criterion.score(table, gate), rtol=1e-12)

    def test_the_larger_score_is_kept_unless_its_row_says_so(self, criterion, table, gate):
        scores = criterion.score(table, gate)
        sign = -1 if "larger" in BY_NAME.get(criterion.name, "") else 1
        assert np.array_equal(criterion.saliency(scores), sign * scores)

    def test_without_its_statistics_it_is_refused_in_one_line(self, criterion, gate):
        stats = random_stats(1)
        ids = stats.table[["layer", "expert"]]
        of_weights = ids.assign(projection="up", l1=1.0, l2_squared=1, numel=4)
        weights = WeightStats(run_manifest(kind="weights"), of_weights)
        others = {"routed": [weights], "weights": [stats], "none": []}[criterion.source]
        lacking = set(OPTIONAL_COLUMNS) & set(criterion.columns(gate))
        bare = stats.table.drop(columns=[*lacking & set(stats.table.columns)])
        others += [replace(stats, table=bare)] if lacking else []
        for other in others:
            with pytest.raises(CriterionError) as refusal:
                rank_experts(criterion, other, gate)
            message = str(refusal.value)
            assert criterion.label in message
            assert any(words in message for words in _LACKS[type(other), criterion.source])
            assert "\n" not in message
        if criterion.source == "none":
            for other in (weights, stats):
                assert len(rank_experts(criterion, other, gate)) == len(ids)


@pytest.mark.parametrize(("name", "exponents"), EXPONENTS.items())
def test_names_stand_for_their_exponents(name, exponents):
    assert get_criterion(name).exponents == exponents
    assert get_criterion(name).name == name
    for written in (",".join(map(str, exponents)), " {}, {} ,{} ".format(*exponents)):
        assert get_criterion(written).name == name


def test_variants_are_listed_in_the_order_of_their_exponents():
    wanted = [(b, alpha, beta) for b in (0, 1) for alpha in (0, 1, 2) for beta in (0, 1, 2)]
    assert list(VARIANTS) == wanted
    assert set(VARIANTS) - set(RANKABLE) == {(1, 0, 0)}
    assert unified(1, 0, 0).is_constant


SUM = r"\sum_{t: j \in E_t} "


@pytest.mark.parametrize(
    ("exponents", "formula", "columns"),
    [
        ((0, 0, 0), SUM + "1", ("num_tokens",)),
        ((0, 1, 0), SUM + "g_{j,t}", ("renormalized_g1_f0", "num_tokens")),
        ((0, 0, 1), SUM + r"\lVert f_{j,t} \rVert_2", ("g0_f1", "num_tokens")),
        ((0, 2, 0), SUM + "g_{j,t}^2", ("renormalized_g2_f0", "num_tokens")),
        (
            (1, 1, 2),
            r"\frac{1}{N_j} " + SUM + r"g_{j,t} \lVert f_{j,t} \rVert_2^2",
            ("renormalized_g1_f2", "num_tokens"),
        ),
    ],
)
def test_a_variant_is_what_its_exponents_say(exponents, formula, columns):
    criterion = unified(*exponents)
    assert criterion.formula == f"S_j = {formula}"
    assert criterion.columns("renormalized") == columns
    assert (criterion.exponents, criterion.uses_gate) == (exponents, exponents[1] > 0)
    assert (criterion.source, criterion.reference) == ("routed", FAMILY)
    assert not criterion.is_constant


@pytest.mark.parametrize("weight", [-0.5, math.inf, math.nan])
def test_no_lambda_but_a_number_from_zero_on(weight):
    with pytest.raises(CriterionError, match=f"lambda of CAMERA-P is {weight:g}; it must be 0 or"):
        camera_p(weight)


@pytest.mark.parametrize(
    ("text", "name", "label"),
    [
        ("camera-p:0", "camera-p:0", "CAMERA-P, lambda 0"),
        ("camera-p:1.0", "camera-p", "CAMERA-P"),
        ("camera-p:12.5", "camera-p:12.5", "CAMERA-P, lambda 12.5"),
        ("pathfinder:1", "pathfinder:1", "MoE Pathfinder, m 1"),
        ("pathfinder:16384", "pathfinder:16384", "MoE Pathfinder, m 16384"),
        ("pathfinder:100", "pathfinder", "MoE Pathfinder"),
        ("random:0", "random:0", "Random (draw 0)"),
        ("random:07", "random:7", "Random (draw 7)"),
        ("random:42", "random", "Random"),
    ],
)
def test_names_with_a_number(text, name, label):
    criterion = get_criterion(text)
    assert (criterion.name, criterion.label) == (name, label)


def mone_directly(gates, f):
    """mean(g) * || sqrt( 1/(N-1) sum_t (f_t - mean)^2 ) ||_2, elementwise inside."""
    mean = f.sum(axis=0) / len(f)
    elementwise = np.sqrt(((f - mean) ** 2).sum(axis=0) / (len(f) - 1))
    return gates.mean() * np.sqrt((elementwise**2).sum())


def mone_table(gates, f):
    return stats_of(
        num_tokens=[len(f)],
        g0_f2=[(f**2).sum()],
        applied_g1_f0=[gates.sum()],
        vector_sum_sq=[(f.sum(axis=0) ** 2).sum()],
    ).table


@pytest.mark.parametrize("tokens", [2, 3, 50])
@pytest.mark.parametrize(("shift", "rel"), [(0.0, 1e-12), (1.0, 1e-12), (100.0, 1e-9)])
def test_mone_equals_the_elementwise_formula(tokens, shift, rel):
    rng = np.random.default_rng(tokens)
    gates, f = rng.uniform(0.1, 0.9, size=tokens), shift + rng.normal(size=(tokens, 7))
    found = score("mone", mone_table(gates, f))
    assert found.tolist() == pytest.approx([mone_directly(gates, f)], rel=rel)


def test_mone_of_constant_outputs_is_zero_and_never_nan():
    # 0.1 is no binary fraction: the difference of the two sums may come out below zero.
    for tokens in range(2, 40):
        f = np.full((tokens, 11), 0.1)
        (found,) = score("mone", mone_table(np.full(tokens, 0.5), f))
        assert 0 <= found < 1e-7


def test_a_zero_expert_has_aimer_one_and_is_flagged():
    table = weight_table([0.0] * 9, [1.0] + [0.0] * 8)
    assert score("aimer", table).tolist() == pytest.approx([1.0, 1 / 3])
    assert score("hoyer", table).tolist() == pytest.approx([0.0, 1.0])
    assert zero_experts(table).tolist() == [True, False]


weights = st.lists(
    st.floats(-100, 100).filter(lambda w: w == 0 or abs(w) > 1e-3), min_size=2, max_size=30
)


@given(weights, st.floats(1e-3, 1e3))
def test_aimer_and_hoyer_do_not_see_the_scale_and_magnitude_does(w, factor):
    table, scaled = weight_table(w), weight_table([factor * x for x in w])
    for name, times in (("aimer", 1), ("hoyer", 1), ("magnitude", factor)):
        wanted = times * score(name, table)
        np.testing.assert_allclose(score(name, scaled), wanted, rtol=1e-9, atol=1e-9)


@given(st.lists(st.lists(st.integers(-9, 9), min_size=5, max_size=5), min_size=2, max_size=6))
def test_hoyer_orders_experts_of_one_size_as_aimer_does(experts):
    table = weight_table(*(np.array(w, dtype=float) for w in experts))
    aimer, hoyer = get_criterion("aimer"), get_criterion("hoyer")
    one = aimer.saliency(aimer.score(table, "applied"))
    two = hoyer.saliency(hoyer.score(table, "applied"))
    # Affine with a positive factor: hoyer = (sqrt(N) - sqrt(N) * aimer) / (sqrt(N) - 1).
    np.testing.assert_allclose(two, (1 + one) * np.sqrt(5) / (np.sqrt(5) - 1), atol=1e-12)


UNKNOWN = (
    "REAP;1,0;-1,0,0;;1,0,2,;camera-p:;camera-p:1.;camera-p:.5;camera-p:-1;"
    "pathfinder:;pathfinder:1.5;pathfinder:1234567890;1234567890,0,0"
)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1,0,0", "1,0,0 gives every routed expert the same score"),
        ("2,0,0", "2,0,0 are out of range"),
        ("0,3,0", "0,3,0 are out of range"),
        ("0,0,9", "0,0,9 are out of range"),
        ("aimr", "'aimr'.*'aimer'.*exponents b,alpha,beta"),
        # The last two have more than nine digits.
        *((name, f"Unknown criterion '{name}'") for name in UNKNOWN.split(";")),
        *((f"pathfinder:{paths}", "use 1 to 16,384") for paths in (0, 16_385)),
        *((f"random:{seed}", f"'random:{seed}'.*random:2") for seed in ("", "x", "1.5", "-1")),
        ("random:1234567890", "at most nine digits"),
    ],
)
def test_what_is_no_criterion_says_what_works(text, message):
    with pytest.raises(CriterionError, match=message) as caught:
        get_criterion(text)
    assert "\n" not in str(caught.value)


def test_draws_of_random_are_numpys_of_their_seed():
    table = stats_of(num_tokens=[3.0, 1.0, 2.0]).table
    for name, seed in (("random", 42), ("random:42", 42), ("random:2", 2)):
        assert score(name, table).tolist() == np.random.default_rng(seed).random(3).tolist()


def test_averages_of_fractional_counts_are_averages():
    # A blend at weight 0.5 halves both the sum and the count.
    table = stats_of(num_tokens=[0.5], g0_f1=[2.0]).table
    assert score("man", table).tolist() == [4.0]
