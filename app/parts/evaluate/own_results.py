"""Evaluate: the evaluations of this model."""

from dataclasses import replace
from typing import Final

import pandas as pd
import streamlit as st

from analysis.model import DEMO_MODEL
from app.charts import evaluation_curves
from app.charts.choices import ResultChoice
from app.charts.context import Context
from app.charts.evaluations import (
    measures_of,
    stored_results,
    usual_measure,
)
from app.frame.charts import chart_card, show
from app.frame.controls import choose, switch
from app.frame.notes import inform
from app.literal import literal
from app.parts.evaluate.candidates import candidates_part
from app.parts.evaluate.evaluation_form import evaluation_form
from app.session.data import settings
from app.session.keeping import remembered
from app.session.records import records_of
from pruning.evaluate.record import EvaluationStore
from pruning.evaluate.result import MEASURES

_SCREENING: Final = (
    "Screening numbers: how far the pruned model drifts on held-out corpora. Run your own "
    "benchmarks before a release."
)


def own_part(context: Context) -> None:
    """All candidates by loss, then curves and maps, with the form below."""
    records = records_of(context, EvaluationStore)
    store = EvaluationStore(settings().store.directories)
    results = remembered(stored_results, store, context.model.identity)
    if results.empty:
        inform(
            "No evaluations of this model yet. Run one below: your plan, or many criteria and "
            "sparsities with the model loaded once."
        )
    else:
        with st.container(border=True):
            candidates_part(context)
        _charts(context, results)
    with st.expander("Run more evaluations", expanded=results.empty):
        evaluation_form(context, records)


def _charts(context: Context, results: pd.DataFrame) -> None:
    with st.container(horizontal=True, vertical_alignment="bottom"):
        measure = choose(
            "Measure",
            measures_of(results),
            usual_measure(results),
            key="measure",
            bind="query-params",
            format_func=lambda name: MEASURES[name].label,
            width=220,
        )
        corpora = list(dict.fromkeys(results["corpus"]))
        corpus = choose("Held-out corpus", corpora, key="held_out", bind="query-params", width=220)
    known = MEASURES[measure]
    direction = "higher" if known.higher_is_better else "lower"
    st.text(f"{known.label}: {known.description} {direction.capitalize()} is better.")
    context = replace(context, results=ResultChoice(results, measure=measure, corpus=corpus))
    with st.container(border=True):
        _curves(context, results, measure)
    chart_card(
        "pareto",
        context,
        f"**Quality against memory** on {literal(corpus)}: steps mark the best at each memory "
        "size; bars are 95% intervals.",
    )
    chart_card(
        "own-winner-map",
        context,
        "**Winner map**: which candidate stays closest to the original model (ESAP).",
    )
    st.text(_SCREENING)
    if context.model.name == DEMO_MODEL:
        st.text("A small model trained for this demo; its rankings are its own.")


def _curves(context: Context, results: pd.DataFrame, measure: str) -> None:
    st.markdown("**What pruning costs**, one panel per corpus; bands are 95% intervals.")
    axes = {name: label for name, (label, *_) in evaluation_curves.AXES.items()}
    against = switch("Against", "against", axes)
    names = sorted(set(results["series"]) - {""})
    lit: list[str] | None = None
    if len(names) > 6:  # one per colour
        own = context.shown.plan.digest if context.shown else ""
        mine = set(results.loc[results["plan"] == own, "series"]) if own else set()
        chosen = st.multiselect(
            "Highlighted lines",
            names,
            default=sorted({*evaluation_curves.leading_series(results, measure), *mine} - {""}),
            key=f"lines.{measure}",
            help="Default: your plan, Random, and the best over all corpora at any sparsity. "
            "Others are grey.",
        )
        lit = [name for name in chosen if name in names]
    choice = replace(context.results, against=against, lit=lit)
    show("evaluation-curves", replace(context, results=choice))
