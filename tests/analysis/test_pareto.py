"""The Pareto front against its definition, applied to every pair."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis.ranking.pareto import pareto_front

# Few values, so that many candidates are equal in one number or in both.
numbers = st.sampled_from([0.0, 1.0, 2.0, 3.0, float("nan")])


def beats(one, other, sign):
    """At least as good in both, and better in one."""
    (cost, worth), (other_cost, other_worth) = one, other
    gain, other_gain = sign * worth, sign * other_worth
    no_worse = cost <= other_cost and gain >= other_gain
    return no_worse and (cost < other_cost or gain > other_gain)


@given(st.lists(st.tuples(numbers, numbers), max_size=12), st.booleans())
def test_the_front_is_what_nobody_beats(candidates, higher_is_better):
    sign = 1 if higher_is_better else -1
    found = pareto_front(
        [cost for cost, _ in candidates],
        [worth for _, worth in candidates],
        higher_is_better=higher_is_better,
    )
    # A comparison with NaN is false, so what has no number beats nobody and is beaten by nobody.
    expected = [
        not np.isnan(each).any() and not any(beats(other, each, sign) for other in candidates)
        for each in candidates
    ]
    assert found.tolist() == expected


def test_by_hand():
    # 10 bytes at loss 3, 20 at 2, 20 at 2.5 (beaten), 30 at 2 (no better than 20 bytes), 40 at 1.
    front = pareto_front([10, 20, 20, 30, 40], [3, 2, 2.5, 2, 1], higher_is_better=False)
    assert front.tolist() == [True, True, False, False, True]


def test_unequal_lengths_are_misuse():
    with pytest.raises(ValueError, match=r"shapes \(2,\) and \(1,\)"):
        pareto_front([1, 2], [1], higher_is_better=True)
