"""The Plan page: layer sensitivity, and the form that measures it."""

from typing import Final

import streamlit as st

from analysis.errors import UserError
from app.charts.context import Context
from app.frame.charts import show
from app.literal import literal
from app.session.data import held_out_texts, text_label, usual_dtype
from app.session.job_queue import own_model, queue, shown_request
from pruning.planning.searches import duration_text, estimate_sensitivity
from pruning.requests.base import validated
from pruning.requests.evaluation import SENSITIVITY_SAMPLES, SensitivityRequest
from pruning.requests.plan import PlanRequest

_SAMPLES: Final = (8, 16, 32, 64, 128)


def sensitivity_part(context: Context) -> None:
    """Folded charts of the layer sensitivity."""
    part = st.expander(
        "Layer sensitivity, and the predicted loss of every size",
        key="sensitivity.part",
        on_change="rerun",
    )
    if not part.open:
        return
    with part:
        if context.sensitivity is None:
            sensitivity_form(context)
            return
        show("layer-sensitivity", context)
        left, right = st.columns(2)
        with left:
            show("layer-sensitivity-map", context)
        with right:
            show("predicted-frontier", context, said=True)


def sensitivity_form(context: Context) -> None:
    """Corpora, time estimate and run button."""
    try:
        asked = context.ranking.request
    except UserError as error:
        st.error(literal(error), icon=":material/error:")
        return
    st.markdown(
        "Measures the loss as each layer alone is pruned further. This predicts the loss of every "
        "plan in this order, and lets the schedule **Measured** spend any budget where it costs "
        "least."
    )
    offered = held_out_texts(context)
    left, right = st.columns([2, 1])
    corpora = left.multiselect(
        "Measured on", offered, default=offered, key="sensitivity.on", format_func=text_label
    )
    samples = right.select_slider(
        "Samples", _SAMPLES, value=SENSITIVITY_SAMPLES, key="sensitivity.samples"
    )
    if not corpora:
        st.text("Choose a corpus; text files in the models folder are offered.")
        return
    request = _request(context, asked, tuple(corpora), int(samples))
    layers, runs = len(context.model.layers), list(context.runs.values())
    if time := estimate_sensitivity(request, layers, runs):
        st.markdown(f":material/timer: {' to '.join(map(duration_text, time))}, and the start.")
    command = shown_request(request).command()
    if st.button("Run sensitivity", key="sensitivity.start", icon=":material/play_arrow:"):
        queue(request, context.model.name, command)
    st.code(command, language=None, wrap_lines=True)


def _request(
    context: Context, asked: PlanRequest, corpora: tuple[str, ...], samples: int
) -> SensitivityRequest:
    values = {
        **own_model(context),
        "criterion": asked.criterion,
        "calibrated_on": asked.corpora,
        "gate": asked.gate,
        "corpora": corpora,
        "samples": samples,
        "dtype": usual_dtype(context),
    }
    request: SensitivityRequest = validated(SensitivityRequest, values)
    return request
