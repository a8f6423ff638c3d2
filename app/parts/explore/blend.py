"""Explore, blends: coverage of each corpus' saliency, and fair weights."""

import streamlit as st

from analysis.ranking.coverage import fair_blend
from app.charts.context import BLEND, Context
from app.charts.coverage import blender
from app.frame.charts import drawn, show_chart
from app.frame.notes import show_command
from app.literal import literal
from app.session.state import apply_shares
from pruning.requests.base import command_line


def blend_part(context: Context) -> None:
    """Coverage of each corpus by the kept experts, and the fair-blend button."""
    st.markdown(
        "**Coverage**: the share of each corpus' saliency that the kept experts hold, mean over "
        "layers. Choose **(blend)** in the sidebar to mix the corpora by hand."
    )
    if (chart := drawn("coverage", context)) is None:
        return
    worst = chart.table.sort_values("coverage").iloc[0]
    with st.container(horizontal=True, vertical_alignment="center"):
        st.button(
            "Fair blend",
            icon=":material/balance:",
            key="fair",
            on_click=_make_fair,
            args=(context,),
            help="Find the shares that maximise the coverage of the worst-covered corpus; takes "
            "seconds.",
        )
        if context.corpus != BLEND:
            st.button(
                "Equal blend",
                icon=":material/tune:",
                key="equal",
                on_click=apply_shares,
                args=(dict.fromkeys(context.runs, 1.0),),
            )
        st.markdown(f"Worst-covered: **{literal(worst['corpus'])}**, {worst['coverage']:.1%}")
    show_chart(chart)
    request = context.request_by(context.ranking_criterion)
    if len(request.corpora) > 1:
        stats = ["--stats-dir", str(request.stats_dir)] if request.stats_dir else []
        words = (*request.options(), "--sparsity", context.sparsity, *stats)
        show_command(command_line("blend", request.model, *words))


def _make_fair(context: Context) -> None:
    with st.spinner("Finding fair shares"):
        found = fair_blend(blender(context))
    apply_shares(dict(zip(context.runs, found.weights, strict=True)))
