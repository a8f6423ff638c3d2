"""The story: the findings, on the demo, on models with less data, and of neurons."""

import re

import pytest
from page_texts import MEASURED_CORPORA, loaded_on, texts

from app.loaded import CurrentPlan
from app.report.sentences import TITLES

NAMES = list(TITLES.values())


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("model", [None, "once"])
def test_every_finding_is_a_sentence_and_a_chart_if_there_is_data(open_page, model, name):
    test = open_page("story", model, finding=name)
    assert len(test.title) == 1
    assert len(test.title[0].value) > 20
    (about,) = test.caption
    is_demo = model is None
    assert ("trained for this demo" in about.value) == is_demo
    assert (", ".join(MEASURED_CORPORA) in about.value) == is_demo
    has_chart = not (model and name in ("The corpus decides", "Stratification"))
    assert len(test.get("plotly_chart")) == has_chart


def test_its_controls_leave_the_plan_alone_until_it_is_used(open_page):
    test = open_page("story")
    before = test.title[0].value
    test.select_slider(key="story.sparsity").set_value(25).run()
    assert test.title[0].value != before
    assert test.session_state["sparsity"] == 50
    test.button(key="story.use").click().run()
    assert test.session_state["sparsity"] == 25
    assert not [button for button in test.button if button.key == "story.use"]


@pytest.mark.parametrize("criterion", ["heapr", "neuron-norms"])
@pytest.mark.parametrize("name", NAMES)
def test_every_finding_is_of_neurons_too(open_page, name, criterion):
    test = open_page("story", granularity="neuron", criterion=criterion, finding=name)
    assert len(test.title[0].value) > 20
    reads_none = criterion == "neuron-norms" and name == "The corpus decides"
    assert len(test.get("plotly_chart")) == (not reads_none)
    assert "experts" not in test.title[0].value or name == "Stratification"


def test_the_corpora_of_a_blend_are_counted(open_page):
    test = open_page("story", finding="The corpus decides")
    test.segmented_control(key="story.corpus").set_value("(blend)").run()
    assert test.title[0].value.startswith("Calibrated on all 3 corpora, REAP adds +")


def test_neurons_that_another_criterion_drops_are_counted(open_page):
    address = {"granularity": "neuron", "neuron_scope": "layer"}
    plans = {
        name: loaded_on(open_page("story", criterion=name, **address)).shown.plan
        for name in ("heapr", "neuron-norms")
    }
    kept, others = (
        {
            (layer, expert, neuron)
            for layer in range(6)
            for expert in plan.kept.get(layer, range(32))
            for neuron in plan.kept_neurons.get(layer, {}).get(expert, range(64))
        }
        for plan in plans.values()
    )
    test = open_page("story", criterion="heapr", finding="Criteria disagree", **address)
    test.segmented_control(key="story.neurons").set_value("neuron-norms").run()
    count = f"Neuron norms keeps {len(others - kept):,} neurons that HEAPr drops"
    assert test.title[0].value.startswith(count)
    test.button(key="story.use").click().run()
    assert not test.exception
    count = f"HEAPr keeps {len(kept - others):,} neurons that Neuron norms drops"
    assert test.title[0].value.startswith(count)


def kept_by(test):
    plan = loaded_on(test).shown.plan
    return {(layer, expert) for layer, experts in plan.kept.items() for expert in experts}


def toggles(test):
    return tuple(test.segmented_control(key=f"story.{key}").value for key in ("b", "alpha", "beta"))


def test_the_sentence_is_of_the_criterion_of_the_toggles_and_so_is_the_plan_that_it_offers(
    open_page,
):
    reap, seer = (kept_by(open_page("story", criterion=name)) for name in ("reap", "seer"))
    test = open_page("story", criterion="reap", finding="Criteria disagree")
    assert toggles(test) == (0, 0, 0)
    test.segmented_control(key="story.alpha").set_value(1).run()
    said = test.title[0].value
    start, losses = said.rstrip(".").split(": loss ")
    assert start == f"SEER keeps {len(seer - reap)} experts that REAP drops"
    test.button(key="story.use").click().run()
    assert not test.exception
    assert loaded_on(test).choices.criterion.name == "seer"
    # Now the other way round, which leads back.
    assert toggles(test) == (1, 1, 1)
    start, others = test.title[0].value.rstrip(".").split(": loss ")
    assert start == f"REAP keeps {len(reap - seer)} experts that SEER drops"
    assert others.split(" instead of ") == losses.split(" instead of ")[::-1]
    test.button(key="story.use").click().run()
    assert test.title[0].value == said


@pytest.mark.parametrize("model", [None, "once"])
@pytest.mark.parametrize("exponents", [(1, 0, 0), (1, 1, 1)])
def test_no_exponents_leave_the_slide_empty(open_page, model, exponents):
    test = open_page("story", model, criterion="reap", finding="Criteria disagree")
    for key, value in zip(("b", "alpha", "beta"), exponents, strict=True):
        test.segmented_control(key=f"story.{key}").set_value(value)
    test.run()
    assert not test.exception
    words = {
        (1, 0, 0): "(1, 0, 0) gives every expert the same score",
        (1, 1, 1): "REAP is the criterion of the plan",
    }
    assert test.title[0].value.startswith(words[exponents])
    assert len(test.get("plotly_chart")) == 1
    assert not [button for button in test.button if button.key == "story.use"]


def test_a_criterion_without_exponents_is_replaced_and_the_slide_still_compares(open_page):
    test = open_page("story", criterion="aimer", finding="Criteria disagree")
    assert " experts that AIMER drops" in test.title[0].value
    test.button(key="story.use").click().run()
    assert not test.exception
    assert test.title[0].value.startswith("REAP keeps ")
    assert " experts that Frequency drops" in test.title[0].value


def test_stratification_is_a_finding_that_leaves_the_plan_alone(open_page, demo_scores):
    test = open_page("story", finding="Stratification")
    said = test.title[0].value
    by_layer = demo_scores["AIMER"].groupby("layer")
    spread = ((by_layer.max() - by_layer.min()) / by_layer.mean()).median()
    start = f"AIMER separates experts by {spread:.1%}, random weights by "
    words = r"(\S+)%: clearly, (\S+) times"
    by_chance, times = map(float, re.match(re.escape(start) + words, said).groups())
    assert times == pytest.approx(100 * spread / by_chance, rel=0.02)  # both are rounded
    before = loaded_on(test).shown.plan.digest
    test.segmented_control(key="story.scale").set_value("relative").run()
    assert test.title[0].value == said
    assert loaded_on(test).shown.plan.digest == before
    assert not [button for button in test.button if button.key == "story.use"]
    # Without weights it says what to do.
    assert "moeprune weights" in open_page("story", "once", finding="Stratification").title[0].value


def test_a_plan_from_a_file_has_no_story_and_leads_back_to_the_controls(open_page):
    test = open_page("story")
    plan = loaded_on(test).shown.plan
    test.session_state["plan.imported"] = CurrentPlan(plan, file="plan.json")
    test.run()
    assert "from a file" in test.title[0].value
    assert not test.get("plotly_chart")
    test.button(key="story.controls").click().run()
    assert not test.exception
    assert test.get("plotly_chart")


def test_without_a_plan_the_story_says_why(open_page):
    test = open_page("story", protect="0-5")
    assert not test.exception
    assert [title.value for title in test.title] == ["Story"]
    assert not test.get("plotly_chart")
    assert texts(test.error) + texts(test.info)
