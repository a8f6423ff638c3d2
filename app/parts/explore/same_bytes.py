"""Explore, same bytes: loss of neuron plans and whole-expert plans of equal size."""

from dataclasses import replace

import pandas as pd
import streamlit as st

from analysis.widths import expert_widths
from app.charts.context import Context
from app.charts.listing import CHARTS
from app.charts.same_bytes import same_bytes_table
from app.frame.charts import show_chart
from app.frame.controls import one_of
from app.frame.notes import inform, show_command
from app.literal import literal
from app.session import data
from app.session.records import records_of
from pruning.atoms.selection import AtomScope
from pruning.evaluate.record import EvaluationStore
from pruning.plan import ATOMIC_GRANULARITY
from pruning.requests.base import command_line


def same_bytes_part(context: Context) -> None:
    """Held-out loss of neuron plans and whole-expert plans of equal size."""
    st.markdown(
        "**Neurons or whole experts?** Held-out loss of plans of equal size in bytes (within 1%), "
        "each ranked and measured on the same corpus."
    )
    table = same_bytes_table(records_of(context, EvaluationStore))
    if table.empty:
        inform(
            f"{literal(context.model.name)} has no evaluations of neuron and whole-expert plans of "
            "equal size yet. Run the commands below."
        )
        _commands(context)
        return
    chart = CHARTS["same-bytes"].draw(replace(context, removed=_size(table)))
    for sentence in chart.alt.rstrip(".").split(". "):
        st.text(f"{sentence}.")
    show_chart(chart)
    _commands(context)


def _size(table: pd.DataFrame) -> float:
    """Draw the choice of size; return its sparsity."""
    sizes = {f"{100 * removed:.4g}%": removed for removed in sorted(set(table["removed"]))}
    options = list(sizes)
    if len(options) == 1:
        return float(sizes[options[0]])
    given = st.select_slider("Sparsity", options, key="bytes.removed", bind="query-params")
    return float(sizes[one_of(given, options)])


def _commands(context: Context) -> None:
    """Commands for such evaluations at the sparsity in use."""
    # Experts for the sparsity in use, and the same number of neurons.
    widths = [width for held in expert_widths(context.model).values() for width in held]
    experts = max(1, int(len(widths) * context.fraction))
    neurons = experts * sum(widths) // len(widths)
    model, corpus = data.shown_model(context.model), next(iter(context.runs), "CORPUS")
    shared = ("--criterion", "heapr", "--corpus", corpus)
    atoms = ("--granularity", ATOMIC_GRANULARITY, "--atom-scope", str(AtomScope.GLOBAL))
    plans = ("--plan", "neurons.json", "--plan", "experts.json")
    lines = (
        ("plan", model, *shared, *atoms, "--remove", f"{neurons}", "-o", "neurons.json"),
        ("plan", model, *shared, "--remove", f"{experts}", "-o", "experts.json"),
        ("evaluate", model, *plans, "--corpus", corpus),
    )
    shown = [command_line(*line) for line in lines]
    show_command(*shown, heading="More of these from the command line")
