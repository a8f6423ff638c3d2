"""Counts by hand that a budget or constraints no longer fit: the nearest that do."""

from itertools import product

from hypothesis import assume, given
from hypothesis import strategies as st

from analysis.families import MoELayer
from pruning.budget import count_budget
from pruning.constraints import Constraints, rooms_of
from pruning.schedules import Spending, fit_counts


def layer(index, experts=12, top_k=2):
    return MoELayer(index, experts, top_k)


@st.composite
def spendings(draw):
    """Layers, constraints that they can meet, a budget that they can spend, and counts."""
    layers = tuple(layer(2 * n + 1, draw(st.sampled_from((9, 12, 14)))) for n in range(4))
    constraints = Constraints(
        multiple_of=draw(st.sampled_from((1, 2, 4))),
        protected=frozenset(draw(st.sets(st.sampled_from((1, 3)), max_size=1))),
        dropped={5: frozenset(draw(st.sets(st.integers(0, 7), max_size=3)))},
        floor=draw(st.integers(0, 4)),
    )
    rooms = rooms_of(layers, constraints)
    least, most = sum(room.least for room in rooms), sum(room.most for room in rooms)
    total = least + draw(st.integers(0, (most - least) // rooms[0].step)) * rooms[0].step
    assume(total < sum(each.num_experts for each in layers))
    kept = {each.index: draw(st.integers(0, each.num_experts)) for each in layers}
    return Spending(layers, count_budget(layers, total), constraints), rooms, kept


@given(spendings())
def test_they_spend_the_budget_and_stay_within_the_constraints(case):
    spending, rooms, kept = case
    found = fit_counts(spending, kept)
    removed = [each.num_experts - keep for each, keep in zip(found.layers, found.keep, strict=True)]
    assert sum(removed) == spending.budget.total
    assert all(room.allows(gone) for room, gone in zip(rooms, removed, strict=True))


@given(spendings())
def test_what_fits_stays_as_it_is(case):
    spending, _, kept = case
    first = fit_counts(spending, kept)
    again = {each.index: keep for each, keep in zip(first.layers, first.keep, strict=True)}
    assert fit_counts(spending, again).keep == first.keep


@given(spendings())
def test_a_layer_moves_to_the_nearest_number_that_it_can_lose(case):
    _, rooms, _ = case
    for room, gone in product(rooms, range(-3, 18)):
        possible = range(room.least, room.most + 1, room.step)
        # Of two equally near the smaller one, which keeps more.
        assert room.nearest(gone) == min(possible, key=lambda n: (abs(n - gone), n))


def test_all_layers_give_in_proportion_to_their_experts():
    layers = (layer(0, 8), layer(1, 12), layer(2, 12))
    # By hand: nothing is removed yet and 16 must go; of 32 experts that is half of each layer.
    spending = Spending(layers, count_budget(layers, 16), Constraints())
    assert fit_counts(spending, {0: 8, 1: 12, 2: 12}).keep == (4, 6, 6)
    # 20 are gone and 4 come back, as 8 : 12 : 12, which is 1, 1.5 and 1.5; of the two remainders
    # that are equal the lower layer has the first.
    assert fit_counts(spending, {0: 4, 1: 4, 2: 4}).keep == (5, 6, 5)
