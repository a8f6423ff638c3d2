"""The story: five findings, on the demo, on models with less data, and of neurons."""

import pytest

from app.pages.story import FINDINGS

NAMES = [words for words, _ in FINDINGS.values()]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("model", [None, "once"])
def test_every_finding_is_a_sentence_and_a_chart_if_there_is_data(open_page, model, name):
    test = open_page("story", model, finding=name)
    assert len(test.title) == 1
    assert len(test.title[0].value) > 20
    has_chart = not (model and name == "The corpus decides")
    assert len(test.get("plotly_chart")) == has_chart


def test_its_controls_leave_the_plan_alone_until_it_is_used(open_page):
    test = open_page("story")
    before = test.title[0].value
    test.select_slider(key="story.sparsity").set_value(25).run()
    assert test.title[0].value != before
    assert test.session_state["sparsity"] == 50
    test.button(key="story.use").click().run()
    assert test.session_state["sparsity"] == 25
    assert not [each for each in test.button if each.key == "story.use"]


def test_a_plan_of_neurons_has_no_story(open_page):
    test = open_page("story", granularity="neuron")
    assert "neurons" in test.title[0].value
    assert not test.get("plotly_chart")
