"""Criteria: one conformance class for all of them, and the numbers by hand."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from permanent_names import EXPONENTS

from analysis.criteria import CRITERIA, RANKABLE, get_criterion, unified
from analysis.criteria.weight_based import zero_experts
from analysis.errors import CriterionError
from analysis.stats.columns import GATES
from builders.statistics import random_stats, stats_of

EVERY = (*CRITERIA.values(), *(unified(*variant) for variant in RANKABLE))
ALL = {criterion.name: criterion for criterion in EVERY}
ROUTED = {name: criterion for name, criterion in ALL.items() if criterion.source == "routed"}
# Of samples every expert is measured on every token, so none is without tokens.
OF_ROUTED_TOKENS = {
    name: criterion for name, criterion in ROUTED.items() if not criterion.from_samples
}


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


@pytest.mark.parametrize("gate", GATES)
class TestCriteria:
    """What every criterion promises; a new one is measured by this."""

    @pytest.fixture(params=ALL.values(), ids=ALL)
    def criterion(self, request):
        return request.param

    @pytest.fixture
    def table(self, criterion):
        if criterion.source == "weights":
            rng = np.random.default_rng(3)
            return weight_table(*rng.normal(size=(6, 21)), np.zeros(21))
        table = random_stats(3, counts=(4, 3)).table
        if criterion.from_samples:
            rng = np.random.default_rng(4)
            made = rng.normal(size=(len(table), len(criterion.columns("applied"))))
            return table.assign(**dict(zip(criterion.columns("applied"), made.T, strict=True)))
        return table

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


@pytest.mark.parametrize("gate", GATES)
@pytest.mark.parametrize("criterion", OF_ROUTED_TOKENS.values(), ids=OF_ROUTED_TOKENS)
def test_an_expert_that_no_token_reached_has_saliency_zero(criterion, gate):
    table = random_stats(3, counts=(4, 3)).table
    never = (table["num_tokens"] == 0).to_numpy()
    assert never.any()
    assert (criterion.saliency(criterion.score(table, gate))[never] == 0).all()


@pytest.mark.parametrize(("name", "exponents"), EXPONENTS.items())
def test_names_stand_for_their_exponents(name, exponents):
    assert get_criterion(name).exponents == exponents
    assert get_criterion(name).name == name
    assert get_criterion(",".join(map(str, exponents))).name == name


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


@pytest.mark.parametrize("text", ["1,0,2", " 1, 0 ,2 ", "1,  0,2", "msan"])
def test_exponents_and_names_mean_the_same(text):
    assert get_criterion(text).exponents == (1, 0, 2)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1,0,0", "1,0,0 gives every routed expert the same score"),
        ("2,0,0", "2,0,0 are out of range"),
        ("0,3,0", "0,3,0 are out of range"),
        ("0,0,9", "0,0,9 are out of range"),
        ("aimr", "'aimr'.*'aimer'.*exponents b,alpha,beta"),
        *(
            (name, f"Unknown criterion '{name}'")
            for name in ("REAP", "1,0", "-1,0,0", "", "camera-p:-1")
        ),
        *((name, f"Unknown criterion '{name}'") for name in ("camera-p:", "camera-p:1.", "1,0,2,")),
        *((name, f"Unknown criterion '{name}'") for name in ("camera-p:.5", "pathfinder:")),
        ("pathfinder:1.5", "Unknown criterion 'pathfinder:1.5'"),
        ("pathfinder:1234567890", "Unknown criterion"),  # more than nine digits
        *((f"pathfinder:{paths}", "use 1 to 16,384") for paths in (0, 16_385)),
        ("1234567890,0,0", "Unknown criterion"),
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
