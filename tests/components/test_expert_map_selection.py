"""Who moves the selection: the browser's new message, else the app's new wish, else nobody."""

from streamlit.testing.v1 import AppTest

from app.components.expert_map.selection import settle

CLICK, LATER_CLICK = {"layer": 3, "expert": 5, "at": 1}, {"layer": 3, "expert": 5, "at": 2}


def test_the_newer_of_click_and_wish_wins():
    assert settle(None, None, None, (3, 5)).current == (3, 5)
    first = settle(None, CLICK, (3, 5), None)
    assert first.current == (3, 5)
    moved = settle(first, CLICK, (3, 5), (4, 9))
    assert moved.current == (4, 9)
    # The browser repeats its last message; the same choice made again counts.
    assert settle(moved, CLICK, (3, 5), (4, 9)).current == (4, 9)
    assert settle(moved, LATER_CLICK, (3, 5), (4, 9)).current == (3, 5)
    # Clearing is a choice, but a new mount is not.
    assert settle(first, {"layer": None, "expert": None, "at": 2}, None, None).current is None
    assert settle(first, None, None, None).current == (3, 5)


def one_map(layer):
    import numpy as np
    import streamlit as st

    from app.components.expert_map import MapPanel, expert_map, map_payload

    table = np.array([[0.0, 1.0, 0.5]])
    panel = MapPanel("REAP", "", table, np.array([[1, 2, 0]]), np.array([2]), table)
    layers = [st.session_state.setdefault("layer", layer)]
    payload = map_payload(layers, [panel], arrangement="rank", mode="mask", selected=None)
    st.text(str(expert_map(payload, key="page.map")))


def test_page_reads_an_injected_selection_and_forgets_it_for_another_model():
    page = AppTest.from_function(one_map, args=(3,), default_timeout=30).run()
    assert page.text[0].value == "None"
    page.session_state["page.map"] = {"selection": {"layer": 3, "expert": 2}}
    assert page.run().text[0].value == "(3, 2)"
    page.session_state["layer"] = 8
    assert page.run().text[0].value == "None"
    assert not page.exception
