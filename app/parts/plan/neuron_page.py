"""The Plan and Export pages where neurons are chosen: what both begin with, and their order."""

from dataclasses import dataclass

import streamlit as st

from app.charts.context import Context
from app.charts.neuron_cut import neuron_request, ranking_of
from app.parts.explore.neuron_needs import neurons_missing_part
from app.parts.export.exports import preflight_part, start_part
from app.parts.export.options import ExportWidths
from app.parts.plan.experts import import_banner
from app.parts.plan.files import download_button
from app.parts.plan.neurons import (
    figures_part,
    layers_part,
    neuron_files_part,
    neuron_metrics,
    neuron_notes,
    widths_part,
)
from app.session.neuron_plan_data import (
    NeuronSizes,
    export_option,
    imported_file,
    lacks_statistics,
    neuron_sizes,
    shown_neurons,
)
from app.session.plan_state import note_plan
from pruning.planning.neuron_plan import NeuronPlanChoice
from pruning.planning.planning import CurrentPlan


@dataclass(frozen=True, eq=False)
class NeuronsOnScreen:
    """A plan of neurons, and what it takes.

    Args:
        shown: the plan.
        sizes: what it takes in every width mode.
    """

    shown: CurrentPlan
    sizes: NeuronSizes


def neurons_on_screen(context: Context, choice: NeuronPlanChoice) -> NeuronsOnScreen | None:
    """The plan that a file or the controls ask for; None after saying what is missing.

    The Evaluate page remembers it, see `noted_plan`.
    """
    found = _on_screen(context, choice)
    if found is not None:
        note_plan(found.shown)
    return found


def _on_screen(context: Context, choice: NeuronPlanChoice) -> NeuronsOnScreen | None:
    shown, ranking = imported_file(context), None
    if shown is None:
        if lacks_statistics(context):
            neurons_missing_part(context)
            return None
        shown = shown_neurons(context)
        ranking = ranking_of(context, neuron_request(context))
    sizing = (context.model, shown.plan, choice.width_multiple, ranking)
    return NeuronsOnScreen(shown, context.keep(neuron_sizes, *sizing))


def neuron_plan_page(context: Context, choice: NeuronPlanChoice) -> None:
    """The Plan page."""
    found = neurons_on_screen(context, choice)
    if found is None:
        return
    import_banner(found.shown)
    neuron_metrics(context, choice, found.sizes)
    with st.container(border=True):
        widths_part(context, choice, found.sizes)
        neuron_notes(found.shown)
        st.page_link("views/evaluate.py", label="Evaluate this plan", icon=":material/insights:")
    if not found.shown.file:
        figures_part(context)
    with st.container(border=True):
        layers_part(found.sizes)
    with st.container(border=True):
        neuron_files_part(context, choice, found.shown)


def neuron_export_page(context: Context, choice: NeuronPlanChoice) -> None:
    """The Export page, without its jobs and proof."""
    found = neurons_on_screen(context, choice)
    if found is None:
        return
    import_banner(found.shown)
    neuron_metrics(context, choice, found.sizes)
    with st.container(border=True):
        _plan_part(context, choice, found)
    with st.container(border=True):
        left, right = st.columns(2, gap="large")
        widths = ExportWidths(
            export_option(context, choice, found.shown.plan), choice.width_multiple
        )
        with left:
            ready, options = preflight_part(context, found.shown, found.sizes.report, widths)
        with right:
            start_part(context, found.shown, ready, options)


def _plan_part(context: Context, choice: NeuronPlanChoice, found: NeuronsOnScreen) -> None:
    """What is written, and how wide it is."""
    widths_part(context, choice, found.sizes)
    with st.container(horizontal=True, vertical_alignment="center"):
        make = found.shown.plan.to_json
        download_button("Download plan.json", make, "plan.json", "application/json")
        st.page_link("views/plan.py", label="Change the plan", icon=":material/tune:")
    with st.expander("Widths by layer"):
        layers_part(found.sizes)
