"""The chosen expert: one for all pages, in the URL as `expert=LAYER.EXPERT`.

An address may also say `layer=LAYER&expert=EXPERT`.
"""

import re
from collections.abc import Mapping, Sequence

import streamlit as st

from analysis.families.base import MoELayer
from app.session.state import ask_page

KEY, LAYER = "expert", "layer"
_MOST = 16  # characters
Place = tuple[int, int]
_WRITTEN = re.compile(r"\s*(\d{1,6})\s*\.\s*(\d{1,6})\s*", re.ASCII)


def read_place(text: object, layers: Sequence[MoELayer]) -> Place | None:
    """The (layer, expert) of "LAYER.EXPERT"; None if malformed or not in the model."""
    counts, place = {layer.index: layer.num_experts for layer in layers}, _place_of(text)
    return place if place and place[1] < counts.get(place[0], 0) else None


def _place_of(text: object) -> Place | None:
    match = _WRITTEN.fullmatch(text) if isinstance(text, str) else None
    return (int(match.group(1)), int(match.group(2))) if match else None


def chosen_expert(layers: Sequence[MoELayer]) -> Place | None:
    """The expert in the URL, if the model has it."""
    return read_place(st.session_state.get(KEY), layers)


def chosen_place() -> Place | None:
    """The expert in the URL, whether the model has it or not."""
    return _place_of(st.session_state.get(KEY))


def choose_expert(place: Place | None) -> None:
    """Choose another expert, or none; for callbacks, which run before the control is drawn."""
    st.session_state[KEY] = "" if place is None else f"{place[0]}.{place[1]}"


def toggle_expert(place: Place) -> None:
    """Choose a clicked expert, or none if it is chosen already."""
    text = f"{place[0]}.{place[1]}"
    choose_expert(None if st.session_state.get(KEY) == text else place)


def choose_on_map(map_key: str) -> None:
    """Handle a click on the map, which chooses an expert or none."""
    state = st.session_state.get(map_key)
    picked = state.get("selection") if isinstance(state, Mapping) else None
    if not isinstance(picked, Mapping):
        return
    layer, expert = picked.get("layer"), picked.get("expert")
    if layer is None:
        choose_expert(None)
    elif type(layer) is int and type(expert) is int:
        choose_expert((layer, expert))


def choose_in_table(key: str, places: Sequence[Place]) -> None:
    """Choose the expert of the row that was clicked in the table with this key."""
    match st.session_state.get(key):
        case {"selection": {"rows": [int(row), *_]}} if 0 <= row < len(places):
            choose_expert(places[row])


def choose_in_chart(selection: object) -> None:
    """Toggle the expert of the clicked mark, whose data begin with layer and expert."""
    match selection:
        case {"selection": {"points": [*_, {"customdata": [layer, expert, *_]}]}}:
            toggle_expert((int(layer), int(expert)))
        # As the browser writes the numbers of a typed array.
        case {"selection": {"points": [*_, {"customdata": {"0": layer, "1": expert}}]}}:
            toggle_expert((int(layer), int(expert)))


def open_expert(place: Place) -> None:
    """Choose an expert and have the entry script open its page; for callbacks."""
    choose_expert(place)
    ask_page("expert")


def take_address() -> None:
    """Choose the expert of an address such as `?layer=3&expert=18`, before its control is drawn."""
    layer, expert = (st.query_params.get(name, "") for name in (LAYER, KEY))
    if layer and expert:
        del st.query_params[LAYER]
        st.query_params[KEY] = st.session_state[KEY] = f"{layer}.{expert}"[:_MOST]
        st.rerun()  # a new session's control takes what the address said when the run began


def expert_control(layers: Sequence[MoELayer]) -> None:
    """Draw the control."""
    take_address()
    text = st.text_input(
        "Expert",
        key=KEY,
        bind="query-params",
        placeholder="layer.expert, e.g. 3.7",
        max_chars=_MOST,
        help="Marked on every page; a click on a map also sets it.",
    )
    if text and read_place(text, layers) is None:
        first, last = layers[0].index, layers[-1].index
        most = max(layer.num_experts for layer in layers)
        st.text(f"No such expert here: layers {first} to {last}, experts 0 to {most - 1}.")
