"""The parts of the Plan page that show a plan of neurons: numbers, widths, figures, files."""

from collections.abc import Hashable, Mapping
from typing import Any

import pandas as pd
import streamlit as st

from app.charts import neuron_cut
from app.charts.context import Context
from app.frame.cards import card
from app.frame.charts import csv_button, show
from app.literal import literal
from app.parts.plan.experts import LATER, saved_metric, short_number
from app.parts.plan.files import download_button
from app.session.data import shown_model
from app.session.neuron_plan_data import NeuronSizes
from app.session.plan_state import imported_plan
from pruning.atoms.sizes import PLAN_ALONE
from pruning.planning.neuron_plan import (
    NeuronPlanChoice,
    WayToSave,
    saved_sentence,
    ways_to_save,
)
from pruning.planning.planning import CurrentPlan, recipe_of
from pruning.sizes import format_bytes

_ROWS = 12  # of the table by layer, before it scrolls
_RECIPE_PX = 460


def neuron_metrics(context: Context, choice: NeuronPlanChoice, sizes: NeuronSizes) -> None:
    """Five numbers: neurons, disk, memory, parameters and FLOPs of a token."""
    with st.container(horizontal=True):  # wraps where the window is narrow
        stay, of = int(sizes.layers["stay"].sum()), int(sizes.layers["neurons"].sum())
        card("Neurons kept", f"{stay:,}", f"-{1 - stay / of:.1%} of {of:,}")
        rows = {str(row["mode"]): row for row in sizes.table.to_dict("records")}
        _saved_metrics(rows[choice.width_mode], context.model.checkpoint.nbytes)
        _token_metrics(rows[PLAN_ALONE], sizes)


def _saved_metrics(chosen: Mapping[Hashable, Any], before: int) -> None:
    """Bytes in the width mode that is chosen."""
    mode = chosen["mode"]
    if chosen["refused"]:
        card(f"On disk, {mode}", "-", "not possible")
        return
    saved_metric(
        st.metric,
        f"On disk, {mode}",
        before,
        int(chosen["disk"]),
        "Bytes of all tensors.",
    )
    note = "Weights in memory, zeros included, in their types on disk."
    saved_metric(st.metric, f"Loaded, {mode}", before, int(chosen["loaded"]), note)


def _token_metrics(alone: Mapping[Hashable, Any], sizes: NeuronSizes) -> None:
    """What a token needs without the zeros that a width mode adds."""
    measured = sizes.report.is_measured
    routing = "by the measured routing" if measured else "experts chosen equally often"
    active, flops = int(alone["active"]), int(alone["expert_flops"])
    card(
        "Active parameters",
        short_number(active),
        _less(sizes.report.active_before, active),
        note=f"What one token uses, {routing}, without the zeros that a width mode adds.",
    )
    card(
        "Expert FLOPs / token",
        short_number(flops),
        _less(sizes.report.expert_flops, flops),
        note=f"Two per weight of the neurons that stay, {routing}. Programs of today compute a "
        "layer's experts in one width, zeros too: the table below has each mode's own number.",
    )


def _less(before: int, after: int) -> str:
    return (
        "as before" if after == before else f"-{1 - after / before:.1%} of {short_number(before)}"
    )


def widths_part(context: Context, choice: NeuronPlanChoice, sizes: NeuronSizes) -> None:
    """Every width mode: bytes on disk and loaded, what a token costs, who reads it."""
    st.markdown(
        "**What each width mode saves**: transformers computes the experts of a layer in one "
        "width, so narrower ones are filled up with zeros."
    )
    table = widths_table(sizes, context.model.checkpoint.nbytes)
    st.dataframe(
        table,
        hide_index=True,
        alt="What each width mode takes on disk and in memory, and who reads it.",
        column_config={
            "saved on disk": st.column_config.NumberColumn(format="percent"),
            "saved loaded": st.column_config.NumberColumn(format="percent"),
            "expert FLOPs": st.column_config.NumberColumn(format="localized"),
        },
        key="neurons.widths",
    )
    st.markdown(f":material/info: {saved_sentence(sizes.table, context.model.checkpoint.nbytes)}")
    _ways_part(context, choice, sizes.table)
    refused = sizes.refused(choice.width_mode)
    if refused:
        st.warning(literal(refused), icon=":material/warning:")
    csv_button(table, "width-modes")


def _ways_part(context: Context, choice: NeuronPlanChoice, table: pd.DataFrame) -> None:
    """Buttons that save something, where what is chosen saves nothing."""
    ways = ways_to_save(choice, table, context.model.checkpoint.nbytes)
    if imported_plan(context.model) is not None:
        ways = [way for way in ways if way.control != "scope"]  # it would not be this plan
    if ways:
        with st.container(horizontal=True):
            for way in ways:
                st.button(way.label, key=f"neurons.save.{way.value}", on_click=_go, args=(way,))


def _go(way: WayToSave) -> None:
    st.session_state[way.control] = way.value


def widths_table(sizes: NeuronSizes, before: int) -> pd.DataFrame:
    """The width modes for people, and first what the plan alone would take, without zeros."""
    readers = {
        str(option.mode): option.refused
        or ("every reader" if option.stock else "load_pruned, trust_remote_code")
        for option in sizes.options
    }
    widths = {str(o.mode): "" if o.refused else _range(o.widths) for o in sizes.options}
    rows = []
    for row in sizes.table.to_dict("records"):
        mode, known = str(row["mode"]), not row["refused"]
        alone = mode == PLAN_ALONE
        rows.append(
            {
                "width mode": "without zeros" if alone else mode,
                "on disk": format_bytes(int(row["disk"])) if known else "-",
                "saved on disk": 1 - int(row["disk"]) / before if known else None,
                "loaded": format_bytes(int(row["loaded"])) if known else "-",
                "saved loaded": 1 - int(row["loaded"]) / before if known else None,
                "expert FLOPs": int(row["expert_flops"]) if known else None,
                "width loaded": "" if alone else widths[mode],
                "read by": "for comparison" if alone else readers[mode],
            }
        )
    return pd.DataFrame(rows)


def _range(widths: tuple[int, int]) -> str:
    least, most = widths
    return str(least) if least == most else f"{least} to {most}"


def figures_part(context: Context) -> None:
    """What each layer loses, and the FLOPs that are saved, in every scope side by side."""
    found = neuron_cut.scopes(context)
    left, right = st.columns(2)
    if not found.layers.empty:
        with left, st.container(border=True):
            st.markdown("**What each layer loses** on this budget, by who competes with whom.")
            show("neuron-layers", context)
        with right, st.container(border=True):
            st.markdown(
                "**Computation saved** as more neurons go: below the dotted line, experts that "
                "are seldom chosen lose most."
            )
            show("neuron-flops", context)
    for scope, why in found.refused.items():
        st.text(f"{scope} is not possible: {why}")


def layers_part(sizes: NeuronSizes) -> None:
    """How wide the experts of each layer stay."""
    st.markdown("**Exact values**: neurons and widths of the experts that stay, layer by layer.")
    table = sizes.layers.drop(columns=["held"])
    table = table.drop(columns=[name for name in ("pinned", "dropped") if not table[name].any()])
    st.dataframe(
        table,
        hide_index=True,
        column_config={
            "share": st.column_config.ProgressColumn(
                "removed", format="percent", min_value=0, max_value=1, color="primary"
            ),
            "kept": st.column_config.NumberColumn("experts kept"),
            "stay": st.column_config.NumberColumn("neurons kept"),
            "least": st.column_config.NumberColumn("narrowest"),
            "mean": st.column_config.NumberColumn("mean width", format="%.1f"),
            "most": st.column_config.NumberColumn("widest"),
            "empty": st.column_config.NumberColumn("empty", help="Experts without a neuron left."),
        },
        height="content" if len(table) <= _ROWS else 35 * (_ROWS + 1),
        key="neurons.layers",
        alt="Neurons that stay in each layer, and how wide its experts are.",
    )
    csv_button(table, "neuron-layers-table")


def neuron_notes(shown: CurrentPlan) -> None:
    """What a person should know of the plan, one line each."""
    for note in shown.notes:
        st.markdown(f":material/info: {literal(note)}")
    st.markdown(f":material/science: {LATER}")


def neuron_files_part(context: Context, choice: NeuronPlanChoice, shown: CurrentPlan) -> None:
    """The recipe, the command line, the files, and the way to the export."""
    left, right = st.columns(2)
    recipe = ""
    with left:
        st.markdown("**Recipe**: all that was chosen, for `moeprune run recipe.yaml`.")
        if shown.selection is None:
            st.text("A plan from a file has no recipe here; it says itself how it was made.")
        else:
            widths = {"width_mode": choice.width_mode, "width_multiple_of": choice.width_multiple}
            recipe = recipe_of(shown.selection, widths).to_yaml()
            st.code(recipe, language="yaml", height=_RECIPE_PX if len(recipe) > 800 else "content")
    with right:
        st.markdown("**The same from the command line**")
        command = shown.plan_command(shown_model(context.model))
        st.code(command, language=None, wrap_lines=True)
        with st.container(horizontal=True):
            download_button("Save plan.json", shown.plan.to_json, "plan.json", "application/json")
            if recipe:
                name, mime = "recipe.yaml", "application/yaml"
                download_button("Save recipe.yaml", recipe, name, mime)
        st.page_link("views/export.py", label="Export this plan", icon=":material/output:")
