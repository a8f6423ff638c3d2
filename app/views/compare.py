"""Compare: two recipes side by side, where they disagree, and by how much."""

import streamlit as st

from app.parts.compare.recipes import (
    RecipeChoice,
    charts,
    compared,
    listed_experts,
    metrics,
    rank_flow,
    select_recipe,
    show_charts,
    show_command,
)
from app.session.state import View

view: View = st.session_state["view"]
choices: tuple[RecipeChoice, RecipeChoice] = st.session_state["recipes"]
first, second = (select_recipe(view, choice) for choice in choices)

if first is not None and second is not None:
    comparison = compared((first, second))
    metrics(comparison)
    show_charts(charts(comparison, (first, second)))
    with st.container(border=True):
        listed_experts(comparison)
    with st.container(border=True):
        rank_flow(comparison, (first, second))
    show_command((first, second))
