"""Evaluate, the plan of the Plan page: however it was made, it can be measured and asked."""

from types import SimpleNamespace

import pytest

from app.job_queue import KINDS
from pruning.plan import plan_from_dict

HAND = {"model": "once", "sparsity": "50%", "schedule": "By hand", "counts": "4.3.2"}
SEARCHED = {"schedule": "Searched", "searched": "demo-frequency"}
NEURONS = {"granularity": "Neurons", "sparsity": "30%"}


def lines_of(test):
    """The command lines that the page shows."""
    return [line for code in test.code for line in code.value.splitlines()]


def queued(monkeypatch):
    """What would be queued: no worker is started."""
    asked = []

    def submit(request, **_titles):
        asked.append(request)
        return SimpleNamespace(id="0" * 12, kind=KINDS[type(request)])

    monkeypatch.setattr("app.queueing.submit", submit)
    return asked


def press(test, label="Queue"):
    next(button for button in test.button if button.label == label).click().run()
    assert not test.exception


@pytest.mark.parametrize("address", [HAND, SEARCHED, NEURONS])
def test_the_plan_of_the_plan_page_is_measured(open_page, go_to, monkeypatch, address):
    asked = queued(monkeypatch)
    test = open_page("plan", **address)
    made = next(line for line in lines_of(test) if line.startswith("moeprune plan"))
    go_to(test, "evaluate")
    assert test.segmented_control(key="evaluate.what").value == "plan"
    shown = lines_of(test)
    # The same line that the Plan page gives for its plan, and one that measures it.
    assert made in shown
    assert any(line.startswith("moeprune evaluate") and "plan.json" in line for line in shown)
    press(test)
    (request,) = asked
    plan = plan_from_dict(request.plans[0])
    assert plan.digest == test.session_state["plan.noted"].plan.digest
    assert bool(plan.kept_atoms) == (address is NEURONS)
    if address is HAND:
        assert [len(ids) for ids in plan.kept.values()] == [4, 3, 2]


@pytest.mark.parametrize("address", [HAND, NEURONS])
def test_the_plan_of_the_plan_page_is_asked(open_page, go_to, monkeypatch, address):
    asked = queued(monkeypatch)
    test = open_page("plan", **address)
    go_to(test, "evaluate")
    test.segmented_control(key="results").set_value("ask").run()
    test.text_area[0].set_value("Hello").run()
    press(test, "Ask both")
    plan = plan_from_dict(asked[0].plans[0])
    assert plan.digest == test.session_state["plan.noted"].plan.digest


def test_without_a_plan_the_form_says_where_one_comes_from(open_page):
    test = open_page("evaluate", model="once")
    test.segmented_control(key="evaluate.what").set_value("plan").run()
    assert not test.exception
    assert any("Open it, and what it shows is offered here" in text.value for text in test.text)
    assert not [line for line in lines_of(test) if line.startswith("moeprune evaluate")]


def test_what_is_measured_is_measured_as_the_others_were(open_page, go_to):
    # The demo's own evaluations ran in float32 on 64 samples.
    test = open_page("plan")
    go_to(test, "evaluate")
    line = next(line for line in lines_of(test) if line.startswith("moeprune evaluate"))
    assert "--dtype float32" in line
    assert test.select_slider(key="evaluate.samples").value == 64
