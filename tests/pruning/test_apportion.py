"""Apportionment: against the rounds of the methods, and against every way to spread a total."""

import itertools
from fractions import Fraction

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from pruning.apportion import apportion
from pruning.constraints import Room


def by_rounds(total, weights, caps):
    """Largest remainder as the methods say it: capped layers leave, the rest is spread again."""
    open_layers, left, capped = list(range(len(weights))), total, {}
    while True:
        whole = sum(weights[i] for i in open_layers)
        over = [i for i in open_layers if Fraction(left * weights[i], whole) > caps[i]]
        if not over:
            break
        for i in over:
            capped[i] = caps[i]
            open_layers.remove(i)
        left = total - sum(capped.values())
    quotas = {i: Fraction(left * weights[i], whole) for i in open_layers}
    counts = {i: int(quota) for i, quota in quotas.items()}
    for i in sorted(open_layers, key=lambda i: (counts[i] - quotas[i], i))[
        : left - sum(counts.values())
    ]:
        counts[i] += 1
    return tuple({**capped, **counts}[i] for i in range(len(weights)))


@settings(max_examples=200)
@given(
    rows=st.lists(st.tuples(st.integers(1, 9), st.integers(0, 9)), min_size=1, max_size=6),
    total=st.integers(0, 40),
)
def test_apportionment_equals_that_by_rounds(rows, total):
    weights, caps = [row[0] for row in rows], [row[1] for row in rows]
    assume(total < sum(caps))
    assert apportion(total, weights, [Room(20, 0, cap) for cap in caps]) == by_rounds(
        total, weights, caps
    )


@settings(max_examples=100)
@given(
    rows=st.lists(
        st.tuples(st.integers(1, 5), st.integers(0, 3), st.integers(0, 4)), min_size=1, max_size=4
    ),
    steps=st.integers(0, 12),
    step=st.sampled_from([1, 2, 3]),
)
def test_apportionment_is_the_nearest_to_its_quotas(rows, steps, step):
    rooms = [Room(99, low, low + step * more, step) for _, low, more in rows]
    weights = [row[0] for row in rows]
    total = sum(room.least for room in rooms) + step * steps
    assume(total <= sum(room.most for room in rooms))
    found = apportion(total, weights, rooms)
    assert sum(found) == total
    assert all(room.allows(n) for room, n in zip(rooms, found, strict=True))
    # The level at which bounded quotas sum to the total, by bisection in floats.
    low, high = 0.0, 1e3
    for _ in range(200):
        middle = (low + high) / 2
        quotas = [
            min(max(middle * w, r.least), r.most) for w, r in zip(weights, rooms, strict=True)
        ]
        low, high = (middle, high) if sum(quotas) < total else (low, middle)

    def distance(counts):
        return sum(abs(n - quota) for n, quota in zip(counts, quotas, strict=True))

    every = itertools.product(*(range(r.least, r.most + 1, step) for r in rooms))
    nearest = min(distance(counts) for counts in every if sum(counts) == total)
    assert distance(found) == pytest.approx(nearest, abs=1e-6)
