"""Evaluate, hidden states: how far pruning changes them, and the form to measure it."""

from typing import Final

import pandas as pd
import streamlit as st
from streamlit.column_config import NumberColumn

from app.charts import hidden_states
from app.choices import ResultChoice
from app.loaded import Loaded
from app.session.data import corpus_label, held_out_corpora, records_of
from app.session.job_queue import own_model
from app.widgets.charts import show_named, table_with_csv
from app.widgets.controls import choose
from app.widgets.job_form import offer_job, queue_button, sweep_fields
from app.widgets.notes import inform
from pruning.actions.variance import VarianceRequest
from pruning.records.variances import VarianceStore
from pruning.spec.base import validated

_PREFIX: Final = "variance"


def hidden_states_part(loaded: Loaded) -> None:
    """The chart, one number per candidate, and the form below."""
    st.markdown(
        "**Hidden states**: variance of the features after each layer, on a held-out corpus. A "
        "pruned model's line near the original's means the same scale, not necessarily the same "
        "content."
    )
    results = hidden_states.variance_results(records_of(loaded, VarianceStore))
    if results.empty:
        inform("No measurements of this model yet; run one below.")
    else:
        with st.container(border=True):
            _figure(loaded, results)
    with st.container(border=True):
        _form(loaded)


def _figure(loaded: Loaded, results: pd.DataFrame) -> None:
    draws = hidden_states.draws_of(results)
    with st.container(horizontal=True, vertical_alignment="bottom"):
        label = choose(
            "Held-out corpus", list(draws), key="hidden_text", bind="query-params", width=260
        )
        draw = draws[label]
        names = hidden_states.candidates_of(results, draw)
        lit: list[str] | None = None
        if len(names) > hidden_states.MOST_LINES:
            chosen = st.multiselect(
                "Lines",
                names,
                default=names[: hidden_states.MOST_LINES],
                key=f"{_PREFIX}.lines.{label}",
            )
            lit = [name for name in chosen if name in names]
    choice = ResultChoice(results, draw=draw, lit=lit)
    show_named("hidden-states", loaded.choosing(results=choice), with_sentence=True)
    rows = results[results["draw"] == draw]
    # Nearest first, with the ratio after the last layer.
    factors = hidden_states.deviations(rows)
    last = rows[rows["layer"] == rows["layer"].max()].set_index("candidate")
    ratios = (last["variance"] / last["full"]).reindex(factors.index)
    table = pd.DataFrame({"mean_factor": factors, "last_layer": ratios})
    table = table.rename_axis("candidate").reset_index()
    if len(table):
        note = (
            "exp(mean over layers of |ln(pruned / original)|): 1 is no change; twice and half the "
            "original's variance both give 2."
        )
        table_with_csv(
            table,
            "hidden-states-factors",
            f"Mean factor between {len(table)} candidates and the original, nearest first",
            column_config={
                "mean_factor": NumberColumn("mean factor", format="%.3f", help=note),
                "last_layer": NumberColumn("last layer, pruned / original", format="%.3f"),
            },
        )


def _form(loaded: Loaded) -> None:
    """Queue a measurement as a job."""
    st.markdown("**Measure more**: run up to 4,096 tokens of a held-out corpus through each model.")
    with st.form(f"{_PREFIX}.form", border=False):
        values, texts = sweep_fields(loaded, _PREFIX), held_out_corpora(loaded)
        text = st.selectbox(
            "Held-out corpus",
            texts,
            key=f"{_PREFIX}.text",
            format_func=corpus_label,
            placeholder="no corpus",
        )
        current_plan = loaded.shown
        with_plan = current_plan and st.checkbox("Include your plan", key=f"{_PREFIX}.plan")
        sent = queue_button("Run measurement")
    values |= {"corpora": (text,) if text else (), "plans": ()}
    if current_plan and with_plan:
        values |= {"plans": (current_plan.plan.to_dict(),)}
    both = bool(values["criteria"]) == bool(values["sparsities"])
    if not values["corpora"] or not both or not (values["criteria"] or values["plans"]):
        st.text("Choose a corpus, and criteria with a sparsity or your plan.")
        return
    request = validated(VarianceRequest, {**own_model(loaded), **values})
    offer_job(loaded, request, loaded.model.name, sent=sent)
