"""Missing neuron statistics, and the button that collects them."""

import streamlit as st

from analysis.corpora import corpus_name
from analysis.stats.groups import groups_for, ordered
from app.charts.context import Context
from app.frame.notes import inform, show_command
from app.literal import literal
from app.session.job_queue import own_model, queue, shown_request
from app.session.texts import calibration_texts, text_label
from pruning.requests.base import validated
from pruning.requests.calibration import CalibrateRequest


def neurons_missing_part(context: Context) -> None:
    """Show what is missing, and offer the calibration per neuron."""
    if context.criterion is None:
        raise ValueError("a criterion of weights alone lacks no statistics")
    known = calibration_texts()
    names = {corpus_name(corpus): corpus for corpus in known}
    chosen = names.get(context.corpus, known[0])
    inform(
        f"{context.criterion.label} needs statistics per neuron, which are missing for "
        f"{literal(context.model.name)}"
        + (f" on {literal(context.corpus)}" if context.runs else "")
        + " yet. Collect them here (one forward and one backward pass), or choose Neuron norms, "
        "which read only the weights."
    )
    corpus = st.selectbox(
        "Corpus",
        known,
        index=known.index(chosen),
        format_func=text_label,
        key="neurons.corpus",
        width=320,
    )
    groups = ",".join(ordered(groups_for(context.criterion.columns("applied"))))
    # Tokens, sequence length and seed of the existing run of this corpus.
    before: dict[str, int] = {}
    if run := context.runs.get(corpus_name(corpus)):
        settings = run.manifest.settings
        before = {"tokens": sum(each.num_tokens for each in run.manifest.corpora)}
        before |= {key: settings[key] for key in ("seq_len", "seed") if key in settings}
    request: CalibrateRequest = validated(
        CalibrateRequest, {**own_model(context), "corpus": corpus, "groups": groups, **before}
    )
    command = shown_request(request).command()
    label, icon = "Collect statistics of neurons", ":material/play_arrow:"
    if st.button(label, icon=icon, type="primary", key="neurons.collect"):
        queue(request, f"neurons of {context.model.name}", command)
    show_command(command)
