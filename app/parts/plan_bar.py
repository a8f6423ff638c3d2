"""The plan in one line on every page: name, savings, loss."""

from pathlib import Path

import streamlit as st

from analysis.errors import UserError
from app.charts.context import Context
from app.literal import literal
from app.parts.losses import loss_of_plan, loss_words
from app.session.job_queue import own_model, queue, shown_request
from app.session.plan_data import bytes_after
from app.session.plan_state import NoPlan, forget_import, lost_file
from app.session.records import losses_of, usual_dtype
from app.session.texts import held_out_texts
from pruning.planning.make import CurrentPlan
from pruning.requests.base import validated
from pruning.requests.evaluation import EvaluateRequest
from pruning.sizes import format_bytes


def no_plan(why: UserError) -> None:
    """Show why there is no plan, with buttons to fix it."""
    if not isinstance(why, NoPlan):
        st.error(literal(why), icon=":material/error:")
        return
    st.info(str(why), icon=":material/info:")
    with st.container(horizontal=True):
        for label, controls in why.ways.items():
            key = f"plan.to.{next(iter(controls))}"
            st.button(label, key=key, on_click=st.session_state.update, args=(controls,))


def plan_line(context: Context) -> None:
    """The plan on screen, with buttons to measure it or to close its file."""
    if name := lost_file(context.shown):
        st.warning(
            f"The URL refers to the file {literal(name)}, which links do not carry. Open it again "
            "below; until then the controls define the plan.",
            icon=":material/warning:",
        )
    if (shown := context.shown) is not None:
        with st.container(horizontal=True, vertical_alignment="center", gap="small"):
            _line(context, shown)


def _line(context: Context, shown: CurrentPlan) -> None:
    before, after = context.model.checkpoint.nbytes, bytes_after(context, shown)
    loss, chance = loss_of_plan(context)
    saved = f"-{1 - after / before:.0%}" if after < before else "nothing saved"
    st.markdown(
        f"**{literal(shown.name)}** :material/arrow_right_alt: **{format_bytes(after)}** ({saved}) "
        f"· {loss_words(context, loss, chance)}",
        width="content",
    )
    if loss is None or loss.missing:
        _measure_button(context, shown)
    if shown.file:
        st.button(
            "Back to the controls",
            key="plan.forget",
            icon=":material/close:",
            on_click=forget_import,
            type="tertiary",
            help="The file is shown and exported as it is; links do not carry it.",
        )


def _measure_button(context: Context, shown: CurrentPlan) -> None:
    """Queue an evaluation on the corpora and in the dtype of most plans."""
    compared = {name for each in losses_of(context.model)[:1] for name in each.corpora}
    texts = held_out_texts(context)
    texts = [text for text in texts if Path(text).name in compared] or texts
    if not texts:
        st.page_link("views/evaluate.py", label="Measure", icon=":material/insights:")
        return
    if st.button("Measure", key="plan.measure", icon=":material/insights:", type="tertiary"):
        asked = {
            **own_model(context),
            "plans": (shown.plan.to_dict(),),
            "corpora": texts,
            "dtype": usual_dtype(context),
        }
        request = validated(EvaluateRequest, asked)
        queue(request, shown.name, shown_request(request).command((shown.file or "plan.json",)))
