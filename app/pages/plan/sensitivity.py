"""The Plan page: layer sensitivity, and the form that measures it."""

from typing import Final

import streamlit as st

from analysis.errors import UserError
from analysis.numbers.words import time_in_words
from app.errors import show_error
from app.loaded import Loaded
from app.session.data import corpus_label, held_out_corpora, usual_corpora, usual_dtype
from app.session.job_queue import own_model
from app.widgets.charts import show_named
from app.widgets.job_form import offer_job, skip_field
from pruning.plan.plan import EXPERT_GRANULARITY, NEURON_GRANULARITY
from pruning.planning.searches import estimate_sensitivity
from pruning.requests.evaluation import SENSITIVITY_SAMPLES, SensitivityRequest
from pruning.spec.base import flat_values, validated

_SAMPLES: Final = (8, 16, 32, 64, 128)
_CHARTS: Final = {
    EXPERT_GRANULARITY: ("layer-sensitivity", "layer-sensitivity-map", "predicted-frontier"),
    NEURON_GRANULARITY: ("neuron-sensitivity", "neuron-sensitivity-map", "neuron-frontier"),
}
# Fields of a plan's request that decide the order; multiples and floors do for neurons only.
_OF_ORDER: Final = ("granularity", "criterion", "gate", "pin", "drop")
_OF_NEURONS: Final = ("multiple_of", "floor")


def sensitivity_part(loaded: Loaded) -> None:
    """Folded charts of the layer sensitivity."""
    part = st.expander(
        "Layer sensitivity, and the predicted loss of every size",
        key="sensitivity.part",
        on_change="rerun",
    )
    if not part.open:
        return
    with part:
        if loaded.sensitivity is None:
            sensitivity_form(loaded)
            return
        lines, cells, frontier = _CHARTS[loaded.choices.spec.ranking.granularity]
        show_named(lines, loaded)
        cells_column, frontier_column = st.columns(2)
        with cells_column:
            show_named(cells, loaded)
        with frontier_column:
            show_named(frontier, loaded, with_sentence=True)


def sensitivity_form(loaded: Loaded) -> None:
    """Corpora, time estimate and run button."""
    try:
        spec = loaded.ranking.spec
    except UserError as error:
        show_error(error)
        return
    st.markdown(
        "Measures the loss as each layer alone is pruned further. This predicts the loss of every "
        "plan in this order, and lets the schedule **Measured** spend any budget where it costs "
        "least."
    )
    offered, usual = held_out_corpora(loaded), usual_corpora(loaded)
    corpora_column, samples_column = st.columns([2, 1])
    corpora = corpora_column.multiselect(
        "Measured on", offered, default=usual, key="sensitivity.on", format_func=corpus_label
    )
    samples = samples_column.select_slider(
        "Samples", _SAMPLES, value=SENSITIVITY_SAMPLES, key="sensitivity.samples"
    )
    if not corpora:
        st.text("Choose a corpus to measure on.")
        return
    skips = skip_field("sensitivity.skip_bad_rows", samples_column)
    names = (*_OF_ORDER, *_OF_NEURONS) if spec.by_neuron else _OF_ORDER
    fields = flat_values(spec)
    values = {
        **own_model(loaded),
        **{name: fields[name] for name in names if name in fields},
        "calibrated_on": spec.ranking.corpora,
        "corpora": tuple(corpora),
        "samples": int(samples),
        "skip_bad_rows": skips,
        "dtype": usual_dtype(loaded),
    }
    request = validated(SensitivityRequest, values)
    layers, runs = len(loaded.model.layers), list(loaded.runs.values())
    if time := estimate_sensitivity(request, layers, runs):
        st.markdown(f":material/timer: {' to '.join(map(time_in_words, time))}, and the start.")
    sent = st.button("Run sensitivity", key="sensitivity.start", icon=":material/play_arrow:")
    offer_job(loaded, request, loaded.model.name, sent=sent)
