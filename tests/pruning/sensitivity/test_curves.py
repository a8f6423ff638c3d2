"""Curves from points, and the allocations that they give, in hand arithmetic."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis.drain import drain
from analysis.errors import PlanError
from analysis.progress import Parts, Progress
from pruning.measures.curves import Curve, Curves, Sensitivity, curves_of, moved_curves
from pruning.measures.points import Point, Points, curve_points, moved_points, whole_point
from pruning.plan.units import Units
from pruning.search.costs import RunCosts
from pruning.search.sensitivity import (
    Aim,
    NewPlans,
    measure_curves,
    refine,
    refinement_parts,
)
from pruning.tasks.sensitivity import _refined

UNITS = Units((8, 8, 8), (0, 0, 0), (6, 6, 6))
SAMPLES = ("a", "b")


def points_of(values, measured=()):
    """Points of single layers, (position, gone) -> ESAP of both samples; KL and loss follow."""
    found = Points({1: 8, 4: 8, 5: 8})

    def add(point, esaps):
        found.add(point, SAMPLES, [(esap, 2 - 2 * esap, 3 - esap) for esap in esaps])

    add(whole_point((0, 0, 0)), (1, 1))
    for (position, gone), esaps in values.items():
        add(Point((0, 0, 0), position, gone), esaps)
    for removed, esaps in measured:
        add(whole_point(removed), esaps)
    return found


LEVELS = {(0, 2): (0.9, 0.7), (0, 6): (0.5, 0.1), (1, 6): (0.8, 0.8), (2, 4): (1.0, 0.5)}


def test_costs_are_those_of_the_mean_over_samples():
    points = points_of(LEVELS)
    curves = curves_of(points, 3, "esap")
    assert [layer.removed.tolist() for layer in curves.layers] == [[0, 2, 6], [0, 6], [0, 4]]
    assert curves.layers[0].costs.tolist() == [0, -math.log(0.8), -math.log(0.3)]
    assert curves.layers[0].at(4) == pytest.approx((-math.log(0.8) - math.log(0.3)) / 2)
    assert curves.predicted((2, 6, 0)) == pytest.approx(-math.log(0.8) - math.log(0.8))
    assert curves_of(points, 3, "kl").layers[2].costs.tolist() == [0, 0.5]
    assert curves_of(points, 3, "nll").layers[1].costs.tolist() == [0, pytest.approx(0.2)]


def test_points_that_lack_samples_are_left_out():
    points = points_of(LEVELS)
    points.add(Point((0, 0, 0), 1, 3), ["a"], [(0.9, 0, 0)])
    assert curves_of(points, 3, "esap").layers[1].removed.tolist() == [0, 6]
    assert curves_of(points, 3, "esap", ["a"]).layers[1].removed.tolist() == [0, 3, 6]
    assert curves_of(Points({1: 8, 4: 8, 5: 8}), 3, "esap") is None


def test_moves_cost_what_they_add_to_the_plan():
    points = points_of(LEVELS, [((2, 2, 2), (0.5, 0.5))])
    move = Point((2, 2, 2), 1, 4)
    points.add(move, SAMPLES, [(0.4, 0, 0), (0.4, 0, 0)])
    moved = moved_curves(points, [whole_point((2, 2, 2)), move], "esap", SAMPLES)
    assert moved.layers[1].removed.tolist() == [2, 4]
    assert moved.layers[1].costs.tolist() == [0, pytest.approx(math.log(0.5 / 0.4))]
    assert moved.layers[0].removed.tolist() == [2]


def test_what_was_measured_as_a_whole_goes_before_what_is_predicted():
    plans = [((0, 6, 0), (0.2, 0.2)), ((2, 4, 0), (0.6, 0.4)), ((0, 0, 6), (0.9, 0.9))]
    spent = Sensitivity((curves_of(points_of(LEVELS, plans), 3, "esap"),))
    # The last is best, but layer 5 may not lose so many here.
    units = replace(UNITS, most=(6, 6, 4))
    assert spent.spend(units, 6) == (2, 4, 0)
    assert "Measured ESAP: 0.5000" in spent.note((2, 4, 0))
    assert spent.spend(units, 5) == spent.solution(units, 5).removed
    assert "Predicted ESAP" in spent.note(spent.spend(units, 5))
    assert next(iter(spent.starts(units, 6).values())) == (2, 4, 0)


def test_a_layer_that_must_lose_more_than_was_measured_is_refused():
    short = Curve(np.array([0, 2]), np.array([0.0, 1.0]))
    spent = Sensitivity((Curves((short,) * 3, {}),))
    with pytest.raises(PlanError, match="measure it further"):
        spent.solution(replace(UNITS, least=(4, 0, 0)), 8)


@given(st.integers(0, 3 * 6000), st.sampled_from((1, 8)))
def test_neurons_on_a_grid_spend_the_budget_exactly(total, step):
    total -= total % step
    units = Units((8192,) * 3, (0, 0, 0), (8000, 6000, 8000), step)
    levels = np.array([0, 4096, 8192])
    curves = tuple(Curve(levels, np.array(costs)) for costs in ([0, 1, 4], [0, 2, 3], [0, 1, 9.0]))
    spent = Sensitivity((Curves(curves, {}),))
    found = spent.solution(units, total)
    assert sum(found.removed) == total
    assert not units.misfits(found.removed)
    # Brute force over breakpoints with one layer in between, where an optimum always lies.
    ends = [sorted({0, 4096, most}) for most in units.most]
    best = math.inf
    for odd in range(3):
        others = [place for place in range(3) if place != odd]
        for one in ends[others[0]]:
            for two in ends[others[1]]:
                rest = total - one - two
                if 0 <= rest <= units.most[odd]:
                    removed = [0, 0, 0]
                    removed[others[0]], removed[others[1]], removed[odd] = one, two, rest
                    pairs = zip(curves, removed, strict=True)
                    best = min(best, sum(curve.at(gone) for curve, gone in pairs))
    slack = 3 * 17 * step * 4 / 4096  # a step of the grid at the steepest slope, for each layer
    assert best - 1e-9 <= found.cost <= best + slack


def costly(a, b, c):
    """With a term that two layers have together."""
    return 0.02 * a**2 + 0.03 * b**2 + 0.01 * c**2 + 0.04 * b * c


def mirrored(a, b, c):
    """As `costly`, of a corpus that needs the other layers."""
    return 0.1 + 0.03 * a**2 + 0.01 * b**2 + 0.03 * c**2 + 0.03 * a * b


class Computed:
    """Stands where a model would: ESAP by a function of what layers lose, on one corpus."""

    def __init__(self, cost_of=costly, size=32):
        self.points = Points({1: size, 4: size, 5: size})
        self.samples = SAMPLES
        self.layers = 0
        self.costs = RunCosts()
        self.cost_of = cost_of

    def expected(self, _):
        return {}

    def measure(self, wanted):
        for point in wanted:
            cost = self.cost_of(*point.removed)
            self.layers += not self.points.knows(point.removed, SAMPLES)
            self.points.add(point, SAMPLES, [(math.exp(-cost), 0, 0)] * 2)
        yield from ()


def cheapest(total, cost_of):
    """Of all allocations with at most 28 of each layer."""
    every = ((a, b, total - a - b) for a in range(29) for b in range(29))
    return min((cost_of(*counts), counts) for counts in every if 0 <= counts[2] <= 28)


def refined(works, curves, aim):
    first = aim.over(curves).solution(aim.units, aim.total)
    return drain(refine(works, first, aim))


@pytest.mark.parametrize(
    ("across", "over"), [("mean", lambda *both: sum(both) / 2), ("worst", max)]
)
@pytest.mark.parametrize("total", [12, 24, 36])
def test_refinement_spares_the_mean_or_the_worst_of_several_corpora(across, over, total):
    units = Units((32,) * 3, (0,) * 3, (28,) * 3)
    works = [Computed(), Computed(mirrored)]
    curves = [drain(measure_curves(work, curve_points(units, 8))) for work in works]
    found = refined(works, curves, Aim(units, total, 20, "esap", across))
    exact, _ = cheapest(total, lambda *counts: over(costly(*counts), mirrored(*counts)))
    last = found[-1]
    assert last.cost == pytest.approx(over(costly(*last.removed), mirrored(*last.removed)))
    assert exact - 1e-9 <= last.cost < 1.02 * exact
    assert [round_.cost for round_ in found] == sorted((n.cost for n in found), reverse=True)
    # A plan that is measured as a whole on both is what the schedule takes.
    known = [curves_of(work.points, 3, "esap") for work in works]
    assert Sensitivity(tuple(known), "esap", across).spend(units, total) == last.removed
    # Refined on one corpus alone, the other suffers.
    alone = refined(works[:1], curves[:1], Aim(units, total, 20))[-1].removed
    assert over(costly(*alone), mirrored(*alone)) > last.cost


def test_refinement_finds_what_additive_costs_miss():
    units = Units((32,) * 3, (0,) * 3, (28,) * 3)
    work = Computed()
    curves = drain(measure_curves(work, curve_points(units, 8)))
    found = refined([work], [curves], Aim(units, 30, 20))
    costs = [round_.cost for round_ in found]
    assert costs == sorted(costs, reverse=True)
    exact = cheapest(30, costly)
    assert found[0].removed != exact[1]
    assert costs[0] > 1.05 * exact[0]
    assert costs[-1] < 1.01 * exact[0]
    # The prediction of a round is closer than that of the curves of single layers.
    first, last = (abs(round_.predicted - round_.cost) for round_ in (found[0], found[-1]))
    assert last < first / 5
    spent = work.layers
    again = refined([work], [curves], Aim(units, 30, 20))
    assert [round_.removed for round_ in again] == [round_.removed for round_ in found]
    assert work.layers == spent  # what is known decides nothing, and is not measured again


def test_later_plans_are_expected_by_their_own_moves():
    class Told(Computed):
        def measure(self, wanted):
            yield Progress("measuring", 0, 0)
            yield from super().measure(wanted)

    units, work = Units((32,) * 3, (0,) * 3, (28,) * 3), Told()
    work.costs = RunCosts(layers=(1.0, 1.0, 1.0), sparse=(0, 1, 2), head=0.5)
    curves = drain(measure_curves(work, curve_points(units, 8)))
    spread = Sensitivity((curves,), "esap")
    aims = {name: Aim(units, total, 1) for name, total in (("half", 42), ("none", 0))}
    expected = [
        refinement_parts([work], units, spread.solution(units, aim.total).removed, 1, NewPlans())
        for aim in aims.values()
    ]
    first, second = (parts.whole.total for parts in expected)
    assert second["multiply"] < first["multiply"]  # a plan that removes nothing moves one way
    parts = Parts(dict.fromkeys(aims, first))
    next(_refined([work], spread, aims, parts, NewPlans()))
    assert parts.costs("none") == second


def test_rounds_that_do_not_help_move_half_as_far():
    units = Units((4096,) * 3, (0,) * 3, (4096,) * 3)
    work = Computed(lambda *lost: sum((number / 4096) ** 2 for number in lost), 4096)
    curves = drain(measure_curves(work, curve_points(units, 8)))
    (plan,) = refined([work], [curves], Aim(units, 3 * 1024, 3))
    moved = {
        abs(point.level - point.base[point.position])
        for point in work.points.on_all(SAMPLES)
        if point.base == plan.removed and point.position >= 0
    }
    # 2, 4 and 8 times a 32nd of the layer; the second and the third round add a distance each.
    assert moved == {256, 512, 1024, 128, 64}


def test_levels_and_moves_stay_within_the_bounds():
    units = Units((32, 32, 32), (0, 8, 0), (28, 24, 0), 4)
    levels = [point.level for point in curve_points(units, 8) if point.position == 1]
    assert levels == [8, 12, 16, 20, 24]
    assert not [point for point in curve_points(units, 8) if point.position == 2]
    moves = [point.level for point in moved_points(units, (4, 8, 0)) if point.position == 0]
    assert moves == [0, 12, 20, 28]


@pytest.mark.parametrize(
    ("point", "values", "message"),
    [
        (Point((0, 0), 1, -1), (0.5, 0.5, 0.5), "removes -1 of 8 in a layer"),
        (Point((0, 0), 1, 9), (0.5, 0.5, 0.5), "removes 9 of 8 in a layer"),
        (Point((0, 0), 1, 2), (float("nan"), 0.5, 0.5), "its esap is nan"),
        (Point((0, 0), 1, 2), (0.5, -0.5, 0.5), "its kl is -0.5"),
        (Point((0, 0), 1, 2), (0.5, 0.5, float("inf")), "its nll is inf"),
    ],
)
def test_a_point_of_a_curve_that_cannot_be_is_refused(point, values, message):
    with pytest.raises(ValueError, match=message):
        Points({0: 8, 3: 8}).add(point, ["a"], [values])
