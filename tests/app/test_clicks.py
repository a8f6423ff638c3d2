"""A mark that can be clicked is a plan: a click shows that plan whole, in every field."""

import json

import pytest
from page_texts import decoded
from shipped import shipped_lines
from streamlit.testing.v1 import AppTest

CHART = "chart.loss-by-size"


def _start():
    """The controls, the bar and what a click on a mark of Start does before they are drawn."""
    import streamlit

    from app.charts.listing import CHARTS
    from app.pages.start.finding import _take_clicked
    from app.session.plan_data import bytes_after
    from app.widgets.chosen_plan import chosen_plan
    from app.widgets.plan_bar import loss_of_plan

    state = streamlit.session_state
    if "clicked" in state:
        state["chart.loss-by-size"] = {"selection": {"points": [{"customdata": state["clicked"]}]}}
        _take_clicked(state["loaded"])
    loaded = state["loaded"] = chosen_plan("start")[0]
    state["table"] = CHARTS["loss-by-size"].draw(loaded).table
    state["size"] = bytes_after(loaded, loaded.shown)
    state["loss"] = loss_of_plan(loaded)[0] or loaded.predicted


def marks_of(test):
    """(digest, bits) of each clickable mark of the chart -> its label."""
    charts = [json.loads(each.proto.spec) for each in test.get("plotly_chart")]
    (chart,) = (each for each in charts if "random experts" in {t.get("name") for t in each["data"]})
    marks = {}
    for trace in chart["data"]:
        for plan, text in zip(trace.get("customdata", []), trace.get("text", []), strict=False):
            marks[tuple(plan)] = text
    return marks


def test_a_click_on_every_mark_of_start_gives_its_plan_size_and_loss(open_page):
    test = AppTest.from_function(_start, default_timeout=180).run()
    measured = {}
    for raw in map(json.loads, shipped_lines("evaluations").values()):
        facts = raw["plan"]
        key = facts.get("repair", ""), facts.get("bits", "")
        measured.setdefault(raw["plan_digest"], key)
    out = []
    rows = test.session_state["table"].to_dict("records")
    for row in rows:
        test.session_state["clicked"] = [row["plan"], row["bits"]]
        test.run()
        plan = test.session_state["loaded"].shown.plan
        ok = (plan.in_own_bits.digest == row["plan"], plan.bits == row["bits"], test.session_state["size"], row["bytes"], test.session_state["loss"] and test.session_state["loss"].mean, row["mean"])
        print(row["candidate"], ok, ok[2]==ok[3], ok[4]==ok[5])
    assert 0
