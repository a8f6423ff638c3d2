"""Explore, blends: how much of each text's saliency the kept experts hold, and fair weights."""

import shlex
from fractions import Fraction

import streamlit as st

from analysis.criteria import Criterion
from analysis.ranking.coverage import Blender, fair_blend
from app.frame.charts import show_chart
from app.literal import literal
from app.plots import explore as plots
from app.plots.chart import made_by
from app.session import data
from app.session.state import BLEND, View, apply_shares


def blend_part(view: View, criterion: Criterion) -> None:
    """Coverage of each text by what is kept, and the button that makes it fair."""
    st.markdown(
        "**Coverage**: the share of each text's saliency that the kept experts hold, mean over "
        "layers. Choose **(blend)** in the sidebar to mix the texts by hand."
    )
    reason = _why_no_blend(view, criterion)
    if reason is not None:
        st.info(reason, icon=":material/info:")
        return
    table = plots.coverage_table(_blender(view, criterion), view.weights)
    worst = table.sort_values("coverage").iloc[0]
    with st.container(horizontal=True, vertical_alignment="center"):
        st.button(
            "Fair blend",
            icon=":material/balance:",
            key="fair",
            on_click=_make_fair,
            args=(view, criterion),
            help="Find the shares under which the worst-covered text is covered best; seconds.",
        )
        if view.corpus != BLEND:
            st.button(
                "Equal blend",
                icon=":material/tune:",
                key="equal",
                on_click=apply_shares,
                args=(dict.fromkeys(view.runs, 1.0),),
            )
        st.markdown(f"Worst-covered: **{literal(worst['corpus'])}**, {worst['coverage']:.1%}")
    about = made_by(view.about(), criterion.label, view.source_of(criterion))
    show_chart(plots.coverage_chart(table, about))
    _command(view, criterion)


def _why_no_blend(view: View, criterion: Criterion) -> str | None:
    if len(view.runs) < 2:
        return (
            f"A blend mixes texts; {literal(view.model.name)} has {len(view.runs)}. Calibrate on "
            "another text on the **Start** page."
        )
    if criterion.source != "routed":
        return f"{criterion.label} reads no text, so there is nothing to blend."
    return None


def _blender(view: View, criterion: Criterion) -> Blender:
    mixture = data.mixture(list(view.runs.values()))
    return Blender(mixture, criterion, view.gate, Fraction(view.sparsity_percent, 100))


def _make_fair(view: View, criterion: Criterion) -> None:
    with st.spinner("Looking for fair shares"):
        found = fair_blend(_blender(view, criterion))
    apply_shares(dict(zip(view.runs, found.weights, strict=True)))


def _command(view: View, criterion: Criterion) -> None:
    request = view.request(criterion)
    if len(request.corpora) < 2:
        return
    words = ["moeprune", "blend", request.model, *request.options(), "--sparsity", view.sparsity]
    if request.stats_dir:
        words += ["--stats-dir", str(request.stats_dir)]
    st.code(shlex.join(words), language=None, wrap_lines=True)
