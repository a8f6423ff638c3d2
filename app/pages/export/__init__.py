"""Export: the last result, the plan, its checks, the job that writes it."""

import streamlit as st

from app.literal import literal
from app.loaded import CurrentPlan, Loaded
from app.pages.export.finished import finished_part
from app.pages.export.form import form_part, form_place, one_or_range
from app.pages.export.options import ExportChoice
from app.session.plan_data import export_option, neuron_sizes
from app.widgets.charts import show_named
from app.widgets.job_panel import job_panel
from app.widgets.neuron_sizes import neuron_layers_part, neuron_metrics, width_modes_part
from app.widgets.notes import refusal_part
from app.widgets.plan_bar import in_own_bits, plan_button
from pruning.plan.sizes import SizeReport, format_bytes
from pruning.planning.choice import schedule_label
from pruning.planning.ranking import criterion_badge


def draw(loaded: Loaded) -> None:
    """The page."""
    refusal_part()
    loaded = in_own_bits(loaded, "An export has")
    if (current := loaded.shown) is None:
        pass  # the plan bar shows why
    elif loaded.choices.spec.by_neuron:
        _export_of_neurons(loaded, current)
    else:
        report = loaded.study.sizes(current.plan)
        is_written = finished_part(loaded, current)
        form_column, sizes_column = st.columns(2)
        with form_column:
            with form_place(is_written=is_written):
                choice = form_part(loaded, current, report)
            with st.container(border=True):
                _plan_part(current, report, choice)
        with sizes_column, st.container(border=True):
            _sizes_part(loaded, current, report, choice)
    job_panel("export")


def _plan_part(current_plan: CurrentPlan, report: SizeReport, choice: ExportChoice) -> None:
    """What is kept, its size as the options have it, and the plan's file."""
    title = f"from the file `{current_plan.file.replace('`', '')}`"
    if current_plan.ranking is not None:
        criterion, limits = current_plan.ranking.criterion, current_plan.ranking.spec.limits
        schedule = schedule_label(current_plan.plan.provenance.schedule).lower()
        how = "by hand" if limits.set else schedule
        title = f"{criterion.label}, {criterion_badge(criterion)}, {how}"
    repair = current_plan.plan.repair
    st.markdown(f"**Plan**: {title}{f', repaired, {literal(repair.words)}' if repair else ''}")
    with st.container(horizontal=True, gap="small"):
        kept = f"{report.experts_after:,} of {report.experts_before:,}"
        st.metric("Experts kept", kept, width="content")
        st.metric("On disk", format_bytes(choice.num_bytes), width="content")
        st.metric("Per layer", one_or_range(current_plan.kept.values()), width="content")
    plan_button(current_plan, "export.plan", "Download")


def _sizes_part(
    loaded: Loaded, current_plan: CurrentPlan, report: SizeReport, choice: ExportChoice
) -> None:
    """Bytes of the weights, and what stays of each layer."""
    show_named("sizes", loaded)
    before, after = report.loaded("bfloat16")
    bare = " without padding" if choice.padding else ""
    st.markdown(
        f"Loaded in bfloat16: {format_bytes(before)}, then {format_bytes(after)}{bare}. "
        f"Parameters that one token uses: {report.active_before:,}, then {report.active_after:,}."
    )
    part = st.expander("Kept by layer", key="export.kept", on_change="rerun")
    if part.open:
        ids = current_plan.plan.kept
        words = [", ".join(map(str, experts)) for experts in ids.values()]
        part.dataframe({"layer": list(ids), "kept": words}, hide_index=True)


def _export_of_neurons(loaded: Loaded, current_plan: CurrentPlan) -> None:
    """What the page shows of a plan of neurons."""
    sizes = neuron_sizes(loaded, current_plan)
    neuron_metrics(loaded, sizes)
    option = export_option(loaded, current_plan.plan)
    with form_place(is_written=finished_part(loaded, current_plan)):
        form_part(loaded, current_plan, sizes.report, option)
    with st.container(border=True):
        width_modes_part(loaded, sizes)
        plan_button(current_plan, "export.plan", "Download")
        with st.expander("Widths by layer"):
            neuron_layers_part(sizes)
