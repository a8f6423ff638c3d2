"""Explore, which criterion: recommendation of the literature, and this model's overlap."""

from collections.abc import Mapping

import pandas as pd
import streamlit as st
from streamlit.column_config import CheckboxColumn, NumberColumn

from analysis.criteria import get_criterion
from analysis.ranking.advice import ADVICE, Purpose, read_overlaps
from app.charts.traces import signed
from app.choices import BLEND
from app.literal import literal
from app.loaded import Loaded
from app.session.state import apply_criterion
from app.tables.costs import needs_and_costs
from app.tables.measured_advice import QualityReading, read_losses
from app.widgets.charts import chart_or_message, table_with_csv
from app.widgets.controls import view_switch
from app.widgets.notes import badge
from pruning.planning.ranking import criterion_badge

_PURPOSES: Mapping[Purpose, str] = {
    "agnostic": "Task-agnostic: keep all abilities",
    "specific": "Task-specific: keep one ability",
}


def advice_part(loaded: Loaded) -> None:
    """The recommendation and its reason next to this model's own overlap."""
    st.markdown("**What should the pruned model be good at?**")
    purpose = view_switch("Purpose", "purpose", _PURPOSES)
    paper_column, model_column = st.columns(2)
    with paper_column, st.container(border=True):
        _recommendation(purpose)
    with model_column, st.container(border=True):
        _overlap_part(loaded, purpose)
    _needs(loaded)


def _recommendation(purpose: Purpose) -> None:
    advice = ADVICE[purpose]
    st.markdown("**The literature**")
    with st.container(horizontal=True):
        for name in advice.criteria:
            _use_button(name)
    st.markdown(f"Calibrate on **{advice.corpus}**. {advice.why}")
    st.text(advice.source)


def _use_button(name: str) -> None:
    criterion = get_criterion(name)
    st.button(
        f"{criterion.label}, {criterion_badge(criterion)}",
        key=f"advice.{name}",
        on_click=apply_criterion,
        args=(name,),
        icon=":material/check:",
    )


def _overlap_part(loaded: Loaded, purpose: Purpose) -> None:
    st.markdown("**This model**")
    _quality(read_losses(purpose, loaded.study.losses, float(loaded.fraction)))
    if (chart := chart_or_message("overlap-map", loaded)) is None:
        return
    reading = read_overlaps(purpose, chart.table)
    says = "agrees" if reading.agrees else "disagrees"
    badge(f"Stability: {says} with the paper", is_good=reading.agrees)
    texts = literal(", ".join(loaded.runs))
    st.markdown(f"{reading.sentence} At {loaded.sparsity} sparsity over {texts}.")
    least = reading.table["criterion"].iloc[0]
    if purpose == "agnostic" and least not in ADVICE[purpose].criteria:
        _use_button(least)
    overlap, recommended = NumberColumn(format="%.3f"), CheckboxColumn()
    table_with_csv(
        reading.table,
        "which-criterion",
        reading.sentence,
        height=220,
        column_config={"overlap": overlap, "recommended": recommended},
    )


def _quality(reading: QualityReading) -> None:
    """Whether the recommended criteria beat Random, and how far they are from the best."""
    better, measured = reading.better, len(reading.rows)
    if not measured:
        st.badge("Quality: not measured", icon=":material/help:", color="gray")
        st.markdown("No plan by these criteria was measured together with Random at this sparsity.")
        return
    badge(f"Quality: {better} of {measured} plans beat Random", is_good=reading.is_good)
    table = pd.DataFrame(
        {
            "criterion": [get_criterion(row.criterion).label for row in reading.rows],
            "calibrated on": [row.corpora for row in reading.rows],
            "loss": [row.loss for row in reading.rows],
            "Random": [row.random for row in reading.rows],
            "best measured": [row.best for row in reading.rows],
        }
    )
    words = f"Loss increase, {reading.over}"
    st.markdown(f"{words}:")
    losses = ("loss", "Random", "best measured")
    shown = table.assign(**{name: signed(table[name], 2) for name in losses})
    columns = {name: NumberColumn(format="%+.2f") for name in losses}
    table_with_csv(table, "advice-losses", words, shown=shown, column_config=columns)


def _needs(loaded: Loaded) -> None:
    corpus = loaded.corpus if loaded.corpus != BLEND else next(iter(loaded.runs))
    st.markdown(
        "**What each criterion reads**, and the cost on this model"
        + (f" (corpus: {literal(corpus)})" if corpus else "")
        + ". One run serves all criteria of its kind; times are of the machine that ran it."
    )
    rows = needs_and_costs(loaded.runs.get(corpus), loaded.study.weight_run)
    table_with_csv(
        pd.DataFrame(rows), "needs", "What each criterion reads, and the cost of its statistics"
    )
    st.text("Based on arXiv:2603.18492, Tables 1 and 4.")
