"""What the schedule editor sends, and what it refuses of what a browser sends."""

import json

import pytest

from analysis.errors import PlanError
from analysis.families.base import MoELayer
from app.components.schedule_editor.payload import Bars, bars_payload, checked_edit, stamp_of
from pruning.plan.budget import count_budget
from pruning.plan.constraints import Constraints
from pruning.plan.units import expert_units

# Layers 1, 3, 4 of 12, 12 and 10 experts, top-2; 17 of 34 go.
LAYERS = (MoELayer(1, 12, 2), MoELayer(3, 12, 2), MoELayer(4, 10, 2))
KEPT = {1: 6, 3: 6, 4: 5}


def spent(removed=17, **constraints):
    units = expert_units(LAYERS, Constraints(**constraints))
    return units, count_budget(units, removed)


def message(counts, locked=(), **changes):
    return {"counts": list(counts), "locked": list(locked), "at": 5, **changes}


def test_payload_says_what_each_layer_may_keep():
    sent = bars_payload(
        Bars("id", *spent(16, multiple_of=2, protected=frozenset({4})), {1: 4, 3: 4, 4: 10}), 7
    )
    assert sent["layers"] == [1, 3, 4]
    # Multiples of two from the router's two up; the protected layer keeps all ten.
    assert sent["rules"] == {
        "sizes": [12, 12, 10],
        "low": [2, 2, 10],
        "high": [12, 12, 10],
        "step": 2,
    }
    assert sent["floors"] == [2, 2, 2]
    assert (sent["counts"], sent["budget"], sent["seen"]) == ([4, 4, 10], 18, 7)
    assert sent["ghost"] is None
    json.dumps(sent)


def test_groups_are_the_step_and_the_floor():
    layer = MoELayer(2, 12, 4, 4, 2)
    units = expert_units((layer,))
    bars = Bars("id", units, count_budget(units, 4), {2: 8})
    sent = bars_payload(bars, None)
    # Four groups that keep as many each, two at least: 8 or 12.
    assert sent["rules"] == {"sizes": [12], "low": [8], "high": [12], "step": 4}
    assert sent["floors"] == [8]


def test_94_layers_are_a_small_message():
    layers = tuple(MoELayer(index, 128, 8) for index in range(94))
    kept = dict.fromkeys(range(94), 64)
    units = expert_units(layers)
    bars = Bars("x" * 64, units, count_budget(units, 94 * 64), kept, ghost=kept)
    assert len(json.dumps(bars_payload(bars, 1))) < 4096


def test_an_edit_that_keeps_every_rule_is_taken():
    edit = checked_edit(message([8, 4, 5], [3]), *spent(), KEPT, [])
    assert edit.kept == {1: 8, 3: 4, 4: 5}
    assert edit.locked == {3}


@pytest.mark.parametrize(
    ("sent", "says"),
    [
        pytest.param(None, "not one number per layer", id="nothing"),
        pytest.param({"counts": "6.6.5"}, "not one number per layer", id="text"),
        pytest.param(message([6, 6]), "not one number per layer", id="too-few"),
        pytest.param(message([6, 6, True]), "not one number per layer", id="bool"),
        pytest.param(message([6, 6, 5.0]), "not one number per layer", id="float"),
        pytest.param(message([6, 6, 5], ["3"]), "not one number per layer", id="lock-text"),
        pytest.param(message([6, 6, 5], [2]), "Layer 2 cannot be locked", id="dense-lock"),
        pytest.param(message([7, 6, 5]), "remove 16 experts, but the budget is 17", id="budget"),
        pytest.param(message([12, 1, 4]), "Layer 3 cannot keep 1 experts: .* 2 to 12", id="floor"),
        pytest.param(message([13, 2, 2]), "Layer 1 cannot keep 13", id="more-than-all"),
        pytest.param(message([-1, 12, 6]), "Layer 1 cannot keep -1", id="negative"),
        pytest.param(message([7, 6, 4], [1]), "Layer 1 is locked at 6", id="locked"),
    ],
)
def test_edits_that_break_a_rule_are_refused(sent, says):
    with pytest.raises(PlanError, match=says):
        checked_edit(sent, *spent(), KEPT, [1])


def test_a_layer_that_is_unlocked_by_the_edit_may_change():
    assert checked_edit(message([7, 6, 4]), *spent(), KEPT, [1]).kept[1] == 7


def test_multiples_and_protected_layers_hold():
    limits = spent(16, multiple_of=4, protected=frozenset({4}))
    before = {1: 4, 3: 4, 4: 10}
    with pytest.raises(PlanError, match=r"Layer 1 cannot keep 6 experts: .* in steps of 4"):
        checked_edit(message([6, 2, 10]), *limits, before, [])
    with pytest.raises(PlanError, match="Layer 4 cannot keep 6"):
        checked_edit(message([8, 4, 6]), *limits, before, [])


@pytest.mark.parametrize("at", [None, "5", True, 0, -1, 5.5, 1 << 60])
def test_stamps_that_are_none_count_as_none(at):
    assert stamp_of({"at": at}) is None
    assert stamp_of({"at": 1_700_000_000_000}) == 1_700_000_000_000
