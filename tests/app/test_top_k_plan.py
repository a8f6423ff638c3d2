"""A plan whose layers select different numbers of experts, from a file: the Plan page shows it."""

from dataclasses import replace

from page_texts import bar_of, table_with, texts, upload

from analysis.model.opening import load_model_index
from pruning.plan.plan import fit_plan, keep_all


def test_a_number_a_layer_is_shown_and_no_engine_is_promised(open_page):
    model = load_model_index("demo")
    plan = fit_plan(replace(keep_all(model), top_k={0: 3, 2: 1}), model)
    page = open_page("plan", criterion="reap", corpora="demo-code")
    upload(page, "mine.json", plan.to_json())
    assert not page.exception
    assert "mine.json, top-3.333 by layer" in bar_of(page)
    assert table_with(page, "keeps")["top_k"].tolist() == [3, 4, 1, 4, 4, 4]
    assert any("no export holds them" in text for text in texts(page.markdown))
