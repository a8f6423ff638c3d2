"""The chosen expert: chosen anywhere, marked everywhere, its card, and the limits by hand."""

import pytest
from page_texts import PLANS, loaded_on, sent_to_map

from app.charts.theme import pinned
from app.pages.explore import MAP
from app.session import chosen_expert
from app.session.chosen_expert import choose_in_chart, choose_in_table, choose_on_map
from app.session.hand_limits import changed_limit

CHOSEN = (3, 7)


# A click on the map, on a mark of a chart, on a row of a table: what each leaves in the session.
CLICKS = {
    "map": (choose_on_map, (MAP,), {MAP: {"selection": {"layer": 3, "expert": 7}}}),
    "chart": (
        choose_in_chart,
        ({"selection": {"points": [{"customdata": [3, 7, ", 0.4"]}]}},),
        {},
    ),
    "mark of a typed array": (
        choose_in_chart,
        ({"selection": {"points": [{"customdata": {"0": 3, "1": 7, "2": 9}}]}},),
        {},
    ),
    "table": (
        choose_in_table,
        ("table.never-routed", [(0, 1), CHOSEN]),
        {"table.never-routed": {"selection": {"rows": [1]}}},
    ),
}


@pytest.mark.parametrize("place", CLICKS)
def test_a_click_anywhere_chooses_the_expert(place, monkeypatch):
    callback, arguments, state = CLICKS[place]
    session = dict(state)
    monkeypatch.setattr(chosen_expert.st, "session_state", session)
    callback(*arguments)
    assert session["expert"] == "3.7"


def selected_on_map(test):
    return sent_to_map(test)["selected"]


def marks_of(test):
    """Whether each chart on the page marks an expert."""
    return [pinned(False) in element.proto.spec for element in test.get("plotly_chart")]


def test_a_chosen_expert_is_marked_on_every_page_that_draws_experts(open_page):
    address = {"expert": "3.7", "criterion": "ean", "corpora": "demo-code"}
    assert selected_on_map(open_page("explore", **address)) == list(CHOSEN)
    strata = open_page("explore", show="Stratification", **address)
    assert marks_of(strata) == [True, True]
    compare = open_page("compare", **address)
    assert sent_to_map(compare, "compare.map")["selected"] == list(CHOSEN)
    for test in (strata, compare):
        [card] = [text.value for text in test.markdown if text.value.startswith("EAN: rank")]
        assert "Frequency: rank" in card


@pytest.mark.parametrize(
    ("page", "view"), [("explore", "By token"), ("explore", "Saliency"), ("expert", "")]
)
def test_an_expert_keeps_its_actions_where_the_second_criterion_lacks_statistics(
    open_page, page, view
):
    address = {"criterion": "reap", "baseline": "Magnitude", "expert": "0.1"}
    test = open_page(page, "once", **address, **({"show": view} if view else {}))
    buttons = {button.key for button in test.button}
    assert {"expert.previous", "expert.next", "expert.limit"} <= buttons
    cards = [text.value for text in test.markdown if text.value.startswith("REAP: rank")]
    assert len(cards) == (page == "explore")
    assert not any("Magnitude" in card for card in cards)


def test_a_dropped_and_a_kept_expert_change_places_in_the_plan(open_page):
    address = {"criterion": "ean", "corpora": "demo-code", "expert": "3.7"}
    plain = open_page("explore", **address)
    assert "Keep anyway" in [button.label for button in plain.button]
    before = loaded_on(plain).shown.plan.kept[3]
    kept = plain.button(key="expert.limit").click().run()
    assert not kept.exception
    assert kept.session_state["pin"] == "3:7"
    after = loaded_on(kept).shown.plan.kept[3]
    assert 7 not in before
    assert 7 in after
    assert len(set(after) - set(before)) == len(set(before) - set(after)) == 1
    # The one that goes instead is the last that stayed.
    assert kept.button(key="expert.limit").label == "Undo"
    undone = kept.button(key="expert.limit").click().run()
    assert undone.session_state["pin"] == ""


def test_a_searched_plan_has_no_limits_by_hand(open_page):
    test = open_page("explore", expert="3.7", **PLANS["searched"])
    keys = [button.key for button in test.button]
    assert "expert.next" in keys
    assert "expert.limit" not in keys


def test_limits_are_written_as_a_person_writes_them():
    assert changed_limit("", (3, 7), is_limited=True) == "3:7"
    assert changed_limit("3:5,6 4:0", (3, 7), is_limited=True) == "3:5-7 4:0"
    assert changed_limit("3:5-7;4:0", (3, 6), is_limited=False) == "3:5,7 4:0"
    assert changed_limit("3:7", (3, 7), is_limited=False) == ""
