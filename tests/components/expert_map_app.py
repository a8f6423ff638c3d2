"""The script that the browser test drives; its query parameters choose the data."""

import numpy as np
import streamlit as st
from synthetic_maps import magnitude_and_aimer, panel_from_scores

from app.components.expert_map import expert_map, map_payload

st.set_page_config(layout="wide")
query = st.query_params
num_layers, num_experts = int(query.get("layers", "6")), int(query.get("experts", "32"))
kept = int(query.get("kept", str(num_experts // 2)))
if query.get("steps"):
    kept = kept + np.random.default_rng(3).integers(-kept // 2, kept // 3, size=num_layers)
panels = magnitude_and_aimer(num_layers, num_experts, kept)
if query.get("flat"):
    panels = (panel_from_scores("Flat", np.ones((num_layers, num_experts)), kept), panels[1])
if query.get("ragged"):
    scores = panels[0].scores.copy()
    scores[1::2, num_experts * 3 // 4 :] = np.nan
    panels = (panel_from_scores("Ragged", scores, kept // 2),)
panels = panels[: int(query.get("panels", "2"))]


def count_calls() -> None:
    st.session_state["calls"] = st.session_state.get("calls", 0) + 1


arrangement = st.segmented_control(
    "Arrangement", ["rank", "expert"], default=query.get("arrangement", "rank"), required=True
)
mode = st.segmented_control(
    "Mode", ["values", "mask", "delta"], default=query.get("mode", "values"), required=True
)
if st.button("Let the app choose"):
    st.session_state["wish"] = (4, 9)
with st.container(border=True):
    selected = expert_map(
        map_payload(
            range(1, num_layers + 1),
            panels,
            arrangement=arrangement,
            mode=mode,
            selected=st.session_state.get("wish"),
        ),
        key="map",
        on_select_change=count_calls,
    )
st.text(f"python says {selected}, calls {st.session_state.get('calls', 0)}")
