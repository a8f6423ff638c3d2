"""Explore, single experts: all numbers of one, and those that no token reached."""

import pandas as pd
import streamlit as st

from app import data, maps
from app.charts import show_table
from app.state import View


def expert_part(view: View, selected: tuple[int, int] | None) -> None:
    """All numbers of the selected expert, then the experts that no token reached."""
    if selected is None:
        st.info(
            "Click an expert in the map above, or move there with the arrow keys and press Enter.",
            icon=":material/info:",
        )
    else:
        _numbers(view, *selected)
    _never_routed(view)


def _numbers(view: View, layer: int, expert: int) -> None:
    st.markdown(f"**Layer {layer}, expert {expert}**")
    stats = {corpus: data.expert_stats(run) for corpus, run in view.runs.items()}
    left, right = st.columns(2)
    with left:
        st.markdown("Sums over the tokens routed to it, by text")
        if stats:
            table = maps.expert_sums(stats, layer, expert)
            show_table(table, "expert-sums", f"Sums of layer {layer}, expert {expert}")
        else:
            st.info("No calibration yet: see the **Start** page.", icon=":material/info:")
    with right:
        st.markdown("Rank under every criterion; 1 is kept first")
        weights = data.weight_run(view.model)
        ranks = maps.expert_ranks(
            maps.Sources(
                stats, None if weights is None else data.weight_stats(weights), view.model.layers
            ),
            view.gate,
            (layer, expert),
        )
        show_table(ranks, "expert-ranks", f"Ranks of layer {layer}, expert {expert}")


def _never_routed(view: View) -> None:
    st.markdown("**Experts that no calibration token reached**")
    if not view.runs:
        st.info("No calibration yet: see the **Start** page.", icon=":material/info:")
        return
    stats = {corpus: data.expert_stats(run) for corpus, run in view.runs.items()}
    table: pd.DataFrame = maps.never_routed_experts(stats)
    if table.empty:
        st.badge("every expert routed on every text", icon=":material/check:", color="green")
        return
    show_table(table, "never-routed", f"{len(table)} experts that some text never reached")
