"""Allocations: what a layer must keep, and sparsities read as exact decimals."""

from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis.errors import PlanError
from analysis.families import MoELayer
from analysis.sparsity import as_percent, num_removed, parse_sparsity
from pruning.allocation import Allocation
from pruning.budget import count_budget
from pruning.constraints import Constraints
from pruning.schedules import uniform


def test_too_few_experts_says_what_would_work():
    with pytest.raises(PlanError) as error:
        Allocation((MoELayer(3, 8, 2),), (1,))
    assert str(error.value) == (
        "Layer 3 would keep 1 of 8 experts, but its router picks 2 per token; "
        "at most 75% of them can go."
    )


def test_keeping_more_than_there_are_is_refused():
    with pytest.raises(PlanError, match="keep 9 experts, but it has only 8"):
        Allocation((MoELayer(3, 8, 2),), (9,))


def test_numbers_by_layer_and_the_exact_fractions_removed():
    allocation = Allocation((MoELayer(1, 7, 2), MoELayer(4, 6, 2)), (5, 6))
    assert allocation.ratios == (Fraction(2, 7), Fraction(0))
    assert allocation.removed == (2, 0)
    assert allocation.counts == {1: 5, 4: 6}


@pytest.mark.parametrize(
    "sparsity", ["0.55", "55%", " 55 % ", ".55", 0.55, Decimal("0.55"), Fraction(11, 20)]
)
def test_sparsity_is_read_as_an_exact_decimal(sparsity):
    # int(60 * (1 - 0.55)) is 26: rounding the number kept in floats loses one.
    assert uniform((MoELayer(2, 60, 4),), sparsity).keep == (27,)


@pytest.mark.parametrize(
    "sparsity",
    ["-0.1", "1", "50", "100%", "half", "", "nan", "1/2", "1e-999999999", float("inf"), "\n3\n"],
)
def test_bad_sparsity_gets_one_clear_line(sparsity):
    with pytest.raises(PlanError, match=r"^The sparsity .*(is no number|is out of range).*$"):
        uniform((MoELayer(2, 60, 4),), sparsity)


@given(
    experts=st.integers(1, 512),
    percent=st.integers(0, 99),
)
def test_uniform_removes_the_floor_in_integer_arithmetic(experts, percent):
    layers = (MoELayer(1, experts, 1), MoELayer(3, experts, 1))
    removed = experts * percent // 100
    for sparsity in (f"{percent}%", Fraction(percent, 100), percent / 100):
        assert uniform(layers, sparsity).keep == (experts - removed,) * 2


def test_uniform_that_leaves_too_few_names_the_layer():
    with pytest.raises(PlanError, match=r"Layer 2 would keep 1 of 7 experts.*at most 71.43%"):
        uniform((MoELayer(2, 7, 2),), "90%")


@given(st.integers(1, 10**8).flatmap(lambda n: st.tuples(st.integers(0, n - 1), st.just(n))))
def test_a_percentage_that_is_named_removes_what_it_was_named_for(part):
    number, size = part
    assert num_removed(size, parse_sparsity(as_percent(number, size))) == number


def test_percentages_are_short():
    named = [as_percent(*part) for part in [(0, 6), (2, 6), (3, 4), (1, 1536), (2047, 2048)]]
    assert named == ["0%", "33.34%", "75%", "0.065105%", "99.952%"]


def test_a_floor_is_kept_or_names_itself():
    layers = (MoELayer(0, 8, 2), MoELayer(1, 8, 2))
    limits = Constraints(floor=5)
    assert uniform(layers, "37.5%", limits).keep == (5, 5)
    with pytest.raises(PlanError, match=r"keep 4 of 8 .* keep 5 to 8; nearest: 5 \(37.5% rem"):
        uniform(layers, "50%", limits)
    with pytest.raises(PlanError, match=r"at most 6 \(37.5%\) can go"):
        uniform(layers, count_budget(layers, 7), limits)
    # A floor above a layer's size asks for all that it has.
    assert uniform(layers, "0", Constraints(floor=99)).keep == (8, 8)
    with pytest.raises(PlanError, match="below 0"):
        Constraints(floor=-1)
