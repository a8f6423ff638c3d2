"""A mark that can be clicked is a plan: a click shows that plan whole, in every field."""

import json
from statistics import fmean

import pytest
from page_texts import ALL_CORPORA, opened, table_with
from shipped import shipped_results
from streamlit.testing.v1 import AppTest

from app.charts.sizes import size_text


def _pages():
    """What a click calls, before the controls are drawn and the plan is made of them."""
    import streamlit

    from app.loaded import loss_of_plan
    from app.pages.explore.corpora import _apply_clicked_variant
    from app.pages.start.finding import _take_clicked
    from app.session.plan_data import bytes_after
    from app.widgets.chosen_plan import chosen_plan

    clicks = {
        "loss-by-size": lambda loaded, _, selection: _take_clicked(loaded, selection),
        "variant-losses": _apply_clicked_variant,
    }
    state = streamlit.session_state
    if "mark" in state:
        chart, customdata, table = state["mark"]
        selection = {"selection": {"points": [{"customdata": customdata}]}}
        clicks[chart](state["loaded"], table, selection)
    loaded = state["loaded"] = chosen_plan("start")[0]
    loss = loss_of_plan(loaded)[0] or loaded.predicted
    state["now"] = (bytes_after(loaded, loaded.shown), loss.mean if loss else None)


@pytest.fixture
def clicked(environment):
    """Click a mark: a chart, what the mark carries, and the chart's table; the session then."""
    test = AppTest.from_function(_pages, default_timeout=180)
    test.query_params["opened"] = "1"
    test.run()

    def _clicked(chart, customdata, table=None):
        test.session_state["mark"] = (chart, list(customdata), table)
        test.run()
        assert not test.exception
        return test.session_state

    return _clicked


def marks_of(test, chart):
    """(what a mark of the named chart carries, its label), of all marks on a page."""
    (figure,) = (
        json.loads(element.proto.spec)
        for element in test.get("plotly_chart")
        if f"chart.{chart}" in element.proto.id
    )
    return [
        (tuple(carried), label)
        for trace in figure["data"]
        if trace.get("mode") == "markers" and trace.get("text")
        for carried, label in zip(trace["customdata"], trace["text"], strict=True)
    ]


def measured_by_hand():
    """Digest of each measured plan -> what its records say of it, and its loss by corpus."""
    found = {}
    for raw in (*shipped_results(), *shipped_results(stem="demo-grid")):
        added = raw["metrics"]["nll"]["mean"] - raw["full"]["nll"]["mean"]
        found.setdefault(raw["plan_digest"], (raw["plan"], {}))[1][raw["corpus"]["name"]] = added
    return found


@pytest.mark.parametrize("step", [4, pytest.param(1, marks=pytest.mark.slow)])
def test_a_click_on_a_mark_of_start_gives_its_plan_size_and_loss(open_page, clicked, step):
    """All marks, and where time counts every fourth."""
    test = open_page("start")
    table = table_with(opened(test, "loss-by-size"), "is_shown", "mean").to_dict("records")
    rows = {(row["plan"], row["bits"]): row for row in table}
    marks, records = marks_of(test, "loss-by-size"), measured_by_hand()
    assert len(marks) == len(rows) == 120
    seen = set()
    for carried, label in [mark for mark in marks if mark[0]][::step]:
        row, session = rows[carried], clicked("loss-by-size", carried)
        plan = session["loaded"].shown.plan
        assert session["now"] == (row["bytes"], row["mean"]), label
        assert f"<br>{size_text(row['bytes'])}: {row['mean']:+z.3f}" in label
        assert (plan.in_own_bits.digest, plan.bits) == carried
        assert (", measured<br>" in label) == (plan.digest in records)
        if plan.digest in records:
            facts, added = records[plan.digest]
            assert fmean(added.values()) == pytest.approx(row["mean"])
            assert plan.bits == facts.get("bits", "")
            assert (plan.repair.record_id if plan.repair else "") == facts.get("repair", "")
            assert plan.per_token == facts.get("top_k", "")
        seen.add((plan.granularity, bool(plan.repair), bool(plan.bits)))
    # The rest says why it cannot be clicked: its repair is not shipped, or no slider asks for it.
    rest = [label for carried, label in marks if not carried]
    assert len(rest) == 32
    said = [reason.replace("<br>", " ") for reason in rest]
    assert all(
        "not in the statistics folder" in reason or "no control for" in reason for reason in said
    )
    kinds = {("expert", repaired, bits) for repaired in (True, False) for bits in (True, False)}
    kinds |= {("neuron", False, True), ("neuron", False, False)}
    assert seen == kinds if step == 1 else seen < kinds and len(seen) > 3


def test_a_click_on_every_variant_gives_the_loss_of_its_cell(open_page, clicked):
    test = open_page("explore", corpora=ALL_CORPORA)
    table = table_with(opened(test, "variant-losses"), "alpha", "mean")
    measured = table.dropna(subset="mean")
    assert len(measured) == 17  # all but (1, 0, 0)
    marks = dict(map(reversed, marks_of(open_page("start"), "loss-by-size")))
    (other,) = (
        mark
        for words, mark in marks.items()
        if words.startswith("EAN 50% + repair on 65k tokens, 3 b")
    )
    for row in measured.iloc[::4].to_dict("records"):
        # The cells are of plans as they are, whatever is on screen.
        assert clicked("loss-by-size", other)["loaded"].shown.plan.repair
        variant = (row["b"], row["alpha"], row["beta"])
        session = clicked("variant-losses", variant, table)
        assert session["now"][1] == row["mean"]
        assert session["loaded"].shown.plan.digest == row["plan"]
