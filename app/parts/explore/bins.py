"""Explore, score and loss: a criterion against the true loss change, bin by bin."""

from typing import Any

import pandas as pd
import streamlit as st

from analysis.criteria import CRITERIA, NEURON_CRITERIA
from analysis.errors import UserError
from app.charts import loss_bins
from app.charts.context import Context
from app.charts.loss_bins import WORDS
from app.charts.names import criterion_label
from app.frame.charts import csv_button, show, show_chart
from app.frame.controls import choose
from app.frame.job_form import offer_job, queue_button
from app.frame.job_panel import job_panel
from app.frame.notes import inform
from app.literal import literal
from app.parts.evaluate.sweep_fields import calibrated_field, samples_field
from app.session.job_queue import own_model
from app.session.records import records_of
from app.session.texts import held_out_texts
from pruning.evaluate.bins import BinsRecord, BinsStore
from pruning.plan import ATOMIC_GRANULARITY
from pruning.requests.base import validated
from pruning.requests.evaluation import BinsRequest

_ORDERS = {"saliency": "By saliency", "index": "By position"}
_SHOWN = ("score", "calibration", "agreement", "first bin", "last bin", "bins", "order")


def bins_part(context: Context, granularity: str) -> None:
    """Records of bin-wise loss changes, and the form to measure more."""
    what = WORDS[granularity]
    st.markdown(
        f"**Does the score order {what} as the loss does?** The {what} are split into bins, and "
        "the held-out loss is measured with each bin removed (HEAPr, Figure 3). A perfect score "
        "has rank correlation 1."
    )
    every = records_of(context, BinsStore)
    records = [each for each in every if each.ranked.granularity == granularity]
    if records:
        _charts(context, records, granularity)
    else:
        inform(f"No {what} of {literal(context.model.name)} were measured yet; run one below.")
    _form(context, granularity)
    job_panel("explore.loss")


def _charts(context: Context, records: list[BinsRecord], granularity: str) -> None:
    corpora = sorted({str(record.corpus["name"]) for record in records})
    usual = context.corpus if context.corpus in corpora else corpora[0]
    own = context.criterion.name if context.criterion else ""
    with st.container(horizontal=True, vertical_alignment="bottom"):
        corpus = choose(
            "Held-out corpus", corpora, usual, key="bins.text", bind="query-params", width=220
        )
        overview = loss_bins.overview_of(records, granularity, corpus)
        best_last = overview.iloc[::-1]  # of equal names keep the best
        names = {
            _named(str(r.criterion), str(r.order)): str(r.record) for r in best_last.itertuples()
        }
        options = list(names)[::-1]
        mine = _named(own, "saliency")
        first = mine if mine in names else options[0]
        score = choose("Score", options, first, key="bins.score", bind="query-params", width=260)
    st.text(loss_bins.verdict(overview))
    record = next(each for each in records if each.record_id == names[score])
    # Only for the criterion in use is there a command that draws the same.
    if record is loss_bins.record_of(records, granularity, own, context.corpora):
        is_atomic = granularity == ATOMIC_GRANULARITY
        show("neuron-loss-bins" if is_atomic else "loss-bins", context, said=True)
    else:
        name = f"{WORDS[granularity]}-against-loss-{record.record_id}"
        show_chart(loss_bins.drawing(record, name=name), said=True)
    _overview(overview)


def _named(criterion: str, order: str) -> str:
    return f"{criterion_label(criterion)}, {_ORDERS[order].lower()}"


def _overview(overview: pd.DataFrame) -> None:
    """All scores on this corpus, best order first."""
    table = overview.assign(
        score=[criterion_label(name) for name in overview["criterion"]],
        order=overview["order"].map({"saliency": "saliency", "index": "place"}),
    ).rename(columns={"calibrated_on": "calibration", "first": "first bin", "last": "last bin"})
    st.dataframe(
        table[list(_SHOWN)],
        hide_index=True,
        placeholder="-",
        alt=f"Rank correlation of {len(table)} scores with the true loss change",
        column_config={
            "agreement": st.column_config.NumberColumn("rank correlation", format="%.2f"),
            "first bin": st.column_config.NumberColumn(format="%+.4f"),
            "last bin": st.column_config.NumberColumn(format="%+.4f"),
        },
    )
    if note := random_note(overview):
        st.text(note)
    csv_button(overview, "loss-bins-of-all-scores")


def random_note(overview: pd.DataFrame) -> str:
    """Explain why Random may rank high: it is a single draw; empty without such a row."""
    rows = overview[(overview["criterion"] == "random") & (overview["order"] == "saliency")]
    if rows.empty:
        return ""
    drawn = rows.iloc[0]
    limit = loss_bins.chance_agreement(int(drawn["bins"]))
    place = "above" if drawn["agreement"] > limit else "below"
    return (
        f"Random is a single draw: 19 of 20 draws stay below {limit:.2f}, this one is {place}. "
        f"Compare scores with {limit:.2f}, not with the row Random."
    )


def _form(context: Context, granularity: str) -> None:
    """Queue a measurement as a job."""
    st.markdown("**Measure another score**")
    with st.form(f"bins.{granularity}", border=False):
        values = _values(context, granularity)
        sent = queue_button("Run measurement")
    if not values["corpora"]:
        st.text("There is no corpus to measure on.")
        return
    asked = {**own_model(context), "granularity": granularity, **values}
    try:
        request: BinsRequest = validated(BinsRequest, asked)
    except UserError as error:
        st.error(literal(error), icon=":material/error:")
        return
    about = f"{WORDS[granularity]} of {context.model.name}"
    offer_job(context, request, about, sent=sent)


def _values(context: Context, granularity: str) -> dict[str, Any]:
    """Values of the form's fields."""
    is_atomic = granularity == ATOMIC_GRANULARITY
    first, second, third = st.columns(3)
    criterion = first.selectbox(
        "Score",
        list(NEURON_CRITERIA if is_atomic else CRITERIA),
        format_func=criterion_label,
        key=f"bins.{granularity}.criterion",
    )
    corpus = second.selectbox(
        "Held-out corpus", held_out_texts(context), key=f"bins.{granularity}.corpus"
    )
    calibrated = calibrated_field(context, f"bins.{granularity}", third)
    first, second, third = st.columns(3)
    order = first.selectbox(
        "Order",
        list(_ORDERS),
        format_func=_ORDERS.__getitem__,
        key=f"bins.{granularity}.order",
        help="By saliency tests the ranking; by position is the figure of the papers.",
    )
    bins = second.select_slider(
        "Bins", (4, 5, 8, 10, 16, 20), value=10, key=f"bins.{granularity}.bins"
    )
    return {
        "criterion": criterion,
        "corpora": (corpus,) if corpus else (),
        "calibrated_on": calibrated,
        "order": order,
        "bins": bins,
        "samples": samples_field("Samples", f"bins.{granularity}", third),
    }
