"""Sizes of a model and of its plans before its weights are here."""

from typing import Any, Final

import pandas as pd
import streamlit as st

from analysis.errors import UserError
from app.errors import show_error
from app.literal import literal
from app.session.outlines import OutlineSource, named_source, sizes_of, uploaded_source
from app.widgets.notes import show_command
from pruning.plan.sizes import format_bytes, format_count
from pruning.planning.count_plan import SHARES
from pruning.spec.base import command_line

_ASKED: Final = "start.outline.asked"


def outline_form() -> None:
    """Form for a configuration or a hub id, and what uniform plans would leave of the model."""
    st.markdown(
        "**Before the download**: what plans would leave of a model; no weights are needed."
    )
    with st.form("start.outline", border=False):
        name = st.text_input(
            "Folder in the models folder, or hub id",
            key="start.outline.name",
            max_chars=200,
            placeholder="Qwen/Qwen3-30B-A3B",
        )
        file = st.file_uploader("Or a config.json", type=["json"], key="start.outline.file")
        sent = st.form_submit_button("Show sizes", icon=":material/straighten:")
    try:
        if sent:
            st.session_state.pop(_ASKED, None)
            upload = uploaded_source(file.name, file.getvalue()) if file else None
            st.session_state[_ASKED] = upload or named_source(name.strip())
        if (source := st.session_state.get(_ASKED)) is not None:
            show_command(
                command_line("inspect", source.model, "--config-only"),
                command_line("plan", source.model, "--config-only", "--sparsity", "50%"),
            )
            _sizes(source, sizes_of(source))
    except UserError as error:
        show_error(error)


def _sizes(source: OutlineSource, sizes: dict[str, Any]) -> None:
    st.markdown(
        f"**{literal(source.name)}**: {sizes['experts']:,} experts in {sizes['layers']} layers, "
        f"{format_count(sizes['parameters'])} parameters, "
        f"{format_count(sizes['active_parameters'])} per token, {format_bytes(sizes['bytes'])}. "
        "Equal counts per layer:"
    )
    st.table(pd.DataFrame([_row(plan) for plan in sizes["plans"]]).set_index("sparsity"))
    possible = {plan["sparsity"] for plan in sizes["plans"]}
    refused = [share for share in SHARES if share not in possible]
    note = f"Not possible: {', '.join(refused)}; the routers need more experts." if refused else ""
    for line in filter(None, (note, *sizes["caveats"])):
        st.caption(literal(line))


def _row(plan: dict[str, Any]) -> dict[str, str]:
    kept = sorted(set(plan["kept_per_layer"].values()))
    return {
        "sparsity": plan["sparsity"],
        "experts per layer": str(kept[0]) if len(kept) == 1 else f"{kept[0]} to {kept[-1]}",
        "on disk": format_bytes(plan["bytes_after"]),
        "saved": f"{1 - plan['bytes_after'] / plan['bytes_before']:.0%}",
        "parameters": format_count(plan["params_after"]),
        "per token": format_count(plan["active_params_after"]),
    }
