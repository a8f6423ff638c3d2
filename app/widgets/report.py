"""The sidebar's downloads: a one-page report, or the charts of a page, as HTML."""

from collections.abc import Sequence
from dataclasses import replace

import streamlit as st

from analysis.errors import UserError
from app.charts.chart import Chart
from app.charts.context import Context, call
from app.charts.listing import CHARTS
from app.report.decision import decision_html, decision_of, pair_of
from app.report.page import command_of, report_html, report_of
from app.session.data import shown_model
from app.session.plan_data import bytes_after
from app.widgets.charts import download_button
from app.widgets.notes import show_command
from pruning.evaluate.quality import stored_losses
from pruning.evaluate.record import AnswerStore, EvaluationStore
from pruning.evaluate.store import readable_records
from pruning.planning.make import CurrentPlan


def report_part(context: Context, page: str) -> None:
    """The downloads for the page at the URL path `page`: a report and its charts."""
    granularity = context.granularity
    views = [
        each for each in CHARTS.values() if (each.page, each.granularity) == (page, granularity)
    ]
    if context.pair is None and context.criterion is None:
        views = []
    try:
        command = command_of(context, views) if views else ""
    except UserError:  # the page reports what cannot be read
        command = ""
    if not command and context.shown is None:
        return
    with st.sidebar, st.popover("Report", icon=":material/description:", width="stretch"):
        if context.shown is not None:
            _decision(context, context.shown)
        if command:
            _figures(context, page, views, command)


def _decision(context: Context, current_plan: CurrentPlan) -> None:
    num_bytes = bytes_after(context, current_plan)
    command = current_plan.plan_command(shown_model(context.model))
    model, directories = context.model, context.store.directories

    def page() -> str:
        """The report file; runs on the click, in a thread without a session."""
        losses = stored_losses(EvaluationStore(directories), model.identity)
        answers, _ = readable_records(AnswerStore(directories), model.identity)
        decision = decision_of(model, current_plan, num_bytes, losses, command)
        return decision_html(replace(decision, answers=pair_of(answers, current_plan.plan.digest)))

    st.text("One page to print: what the plan saves, and its loss compared with Random.")
    file, icon = f"{context.model.name}-decision.html", ":material/description:"
    download_button("For decisions", page, file, "report.decision", icon=icon)


def _figures(context: Context, page: str, views: Sequence[Chart], command: str) -> None:
    # The report is made on the click, in a thread without a session.
    alone = replace(context, keep=call)
    st.text(
        "The charts of this page in one HTML file, with captions, numbers and provenance. Both "
        "files open offline and print."
    )
    file = f"{context.model.name}-{page}.html"
    download_button("All figures", lambda: report_html(report_of(alone, views)), file, "report")
    show_command(command)
