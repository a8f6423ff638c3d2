"""The script that the browser test drives: layers 1 to 6 of 32 experts, 16 kept, or as asked."""

import streamlit as st
from synthetic_maps import magnitude_and_aimer

from app.components.expert_map import expert_map, map_payload

SHAPE = {"layers": 6, "experts": 32}


def begin_again() -> None:
    turn = st.session_state.get("turn", 0)
    st.session_state.clear()
    st.session_state["turn"] = turn + 1


def choose() -> None:
    picked = st.session_state[f"map {turn}"]["selection"]
    place = (picked["layer"], picked["expert"])
    st.session_state["chosen"] = None if picked["layer"] is None else place
    st.session_state["calls"] = st.session_state.get("calls", 0) + 1


st.set_page_config(layout="wide")
turn = st.session_state.get("turn", 0)
arrangement = st.segmented_control(
    "Arrangement", ["rank", "expert"], default="rank", required=True, key=f"arrangement {turn}"
)
chosen = st.session_state.get("chosen")
layers, experts = (int(st.query_params.get(name, usual)) for name, usual in SHAPE.items())
mode = st.query_params.get("mode", "beside")
with st.container(border=True):
    panels = magnitude_and_aimer(layers, experts, experts // 2)
    payload = map_payload(
        range(1, layers + 1), panels, arrangement=arrangement, mode=mode, selected=chosen
    )
    expert_map(payload, key=f"map {turn}", on_select=choose)
st.text(f"python says {chosen}, calls {st.session_state.get('calls', 0)}")
st.text(f"turn {turn}")
st.button("Begin again", on_click=begin_again)
