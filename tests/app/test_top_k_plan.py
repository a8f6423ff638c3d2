"""A plan whose layers differ in experts per token or in bits, from a file: Plan shows it."""

from dataclasses import replace

import pytest
from page_texts import bar_of, table_with, texts, upload

from analysis.errors import PlanError
from analysis.model.opening import load_model_index
from app.session.measured_plan import controls_of_facts
from app.widgets.plan_bar import plan_in_bits
from pruning.plan.bits import OWN
from pruning.plan.plan import fit_plan, keep_all, with_top_k
from pruning.records.plan_facts import plan_facts


def test_a_number_a_layer_is_shown_and_no_engine_is_promised(open_page):
    model = load_model_index("demo")
    plan = fit_plan(replace(keep_all(model), top_k={0: 3, 2: 1}), model)
    page = open_page("plan", criterion="reap", corpora="demo-code")
    upload(page, "mine.json", plan.to_json())
    assert not page.exception
    assert "mine.json, top-3.333 by layer" in bar_of(page)
    assert table_with(page, "keeps")["top_k"].tolist() == [3, 4, 1, 4, 4, 4]
    assert any("no export holds them" in text for text in texts(page.markdown))


def test_bits_a_layer_are_shown_as_simulated_and_measured(open_page):
    model = load_model_index("demo")
    plan = fit_plan(replace(keep_all(model), layer_bits={0: "4", 2: "2"}), model)
    page = open_page("plan", criterion="reap", corpora="demo-code")
    upload(page, "mine.json", plan.to_json())
    assert not page.exception
    assert "mine.json, bits by layer" in bar_of(page) and "simulated" in bar_of(page)
    assert plan_in_bits(plan) == {"plans": (plan.to_dict(),), "bits": (OWN,)}


def test_controls_ask_for_one_number_and_say_that_none_asks_for_layers():
    model = load_model_index("demo")
    fewer = plan_facts(with_top_k(keep_all(model), model, 2), model)
    assert controls_of_facts(fewer, model, ["demo-code"])["top_k"] == 2
    for changed, words in (
        ({"top_k": {0: 3}}, "experts per token"),
        ({"layer_bits": {0: "4"}}, "bits"),
    ):
        facts = plan_facts(fit_plan(replace(keep_all(model), **changed), model), model)
        with pytest.raises(PlanError, match=f"no control for {words} by layer"):
            controls_of_facts(facts, model, ["demo-code"])
