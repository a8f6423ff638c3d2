"""The sidebar's way to take a page away: its figures as one HTML file, and the command for it."""

from dataclasses import replace

import streamlit as st

from analysis.errors import UserError
from app.charts.context import Context, call
from app.charts.listing import CHARTS
from app.report.contents import command_of, report_of
from app.report.page import report_html


def report_part(context: Context, page: str) -> None:
    """A page's figures as one HTML file; drawn in the sidebar, where the page has figures.

    Args:
        context: with what was chosen on the page.
        page: its part of the address.
    """
    wanted = context.plan.granularity
    views = [each for each in CHARTS.values() if (each.page, each.granularity) == (page, wanted)]
    if not views or (context.recipes is None and context.criterion is None):
        return
    try:
        command = command_of(context, views)
    except UserError:  # the page says what cannot be read
        return
    # The report is made on the click, in a thread without a session.
    alone = replace(context, keep=call)
    with st.sidebar, st.popover("Report", icon=":material/description:", width="stretch"):
        st.text(
            "The figures of this page in one HTML file: with what they say, their numbers and what "
            "made them. It opens offline and prints."
        )
        st.download_button(
            "Download the report",
            lambda: report_html(report_of(alone, views)),
            file_name=f"{context.model.name}-{page}.html",
            mime="text/html",
            key="report",
            on_click="ignore",
            icon=":material/download:",
        )
        st.code(command, language=None, wrap_lines=True)
