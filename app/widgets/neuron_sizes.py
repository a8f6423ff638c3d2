"""What a plan of neurons saves: numbers, width modes, widths by layer."""

import pandas as pd
import streamlit as st
from streamlit.column_config import NumberColumn, ProgressColumn

from app.literal import literal
from app.loaded import Loaded
from app.session.plan_data import NeuronSizes
from app.session.plan_state import imported_plan
from app.widgets.charts import folded_table, table_with_csv
from app.widgets.notes import card, saved_metric
from pruning.plan.size_words import change_words
from pruning.plan.sizes import PLAN_ALONE, format_bytes, format_count
from pruning.plan.units import NeuronScope
from pruning.planning.choice import WIDTH_MODES

_ROWS = 12  # height of the table by layer


def neuron_metrics(loaded: Loaded, sizes: NeuronSizes) -> None:
    """Five numbers: neurons, disk, memory, parameters and FLOPs of a token."""
    rows = {str(row["mode"]): row for row in sizes.table.to_dict("records")}
    chosen, alone = rows[loaded.choices.spec.budget.width_mode], rows[PLAN_ALONE]
    mode, before = chosen["mode"], loaded.model.checkpoint.nbytes
    with st.container(horizontal=True):  # wraps where the window is narrow
        stay, of = int(sizes.layers["stay"].sum()), int(sizes.layers["neurons"].sum())
        card("Neurons kept", f"{stay:,}", f"-{1 - stay / of:.1%} of {of:,}")
        if chosen["refused"]:
            card(f"On disk, {mode}", "-", "not possible")
        else:
            saved_metric(st.metric, f"On disk, {mode}", before, int(chosen["disk"]))
            note = "Weights in memory, padding included, in their dtype on disk."
            saved_metric(st.metric, f"Loaded, {mode}", before, int(chosen["loaded"]), note)
        # Padding of the width mode included, as in the bytes.
        measured = sizes.report.is_measured
        routing = "by the measured routing" if measured else "experts chosen equally often"
        with_zeros = alone if chosen["refused"] else chosen
        active, flops = int(with_zeros["active"]), int(with_zeros["expert_flops"])
        bare = format_count(int(alone["expert_flops"]))
        card(
            "Active parameters",
            format_count(active),
            _less(sizes.report.active_before, active),
            note=f"Used per token, {routing}, padding included.",
        )
        card(
            "Expert FLOPs / token",
            format_count(flops),
            _less(sizes.report.expert_flops, flops),
            note=f"Two per weight, {routing}. Current engines compute a layer's experts at one "
            f"width, padding included; the kept neurons need {bare}.",
        )


def _less(before: int, after: int) -> str:
    return (
        "as before" if after == before else f"-{1 - after / before:.1%} of {format_count(before)}"
    )


def width_modes_part(loaded: Loaded, sizes: NeuronSizes) -> None:
    """Every width mode: bytes on disk and loaded, compute per token, compatibility."""
    before = loaded.model.checkpoint.nbytes
    st.markdown(
        "**What each width mode saves**: transformers computes the experts of a layer at one "
        "width, so narrower ones are padded with zeros."
    )
    st.markdown(f":material/info: {saved_sentence(sizes.table, before)}")
    folded_table(
        "Every width mode",
        lambda: _widths_table(sizes, before),
        "width-modes",
        "Size of each width mode on disk and in memory, and compatibility.",
        column_config={
            "saved on disk": NumberColumn(format="percent"),
            "saved loaded": NumberColumn(format="percent"),
            "expert FLOPs": NumberColumn(format="localized"),
        },
    )
    if ways := _ways_to_save(loaded, sizes.table):
        with st.container(horizontal=True):
            for label, control, value in ways:
                st.button(
                    label,
                    key=f"neurons.save.{value}",
                    on_click=st.session_state.update,
                    args=({control: value},),
                )
    refused = next(
        option.refused
        for option in sizes.options
        if option.mode == loaded.choices.spec.budget.width_mode
    )
    if refused:
        st.warning(literal(refused), icon=":material/warning:")


def saved_sentence(table: pd.DataFrame, before: int) -> str:
    """One line: which width modes save nothing, and what the others save.

    `table` is of `neuron_plan_sizes`, `before` are bytes of the source.
    """
    alone = table[table["mode"] == PLAN_ALONE]
    if (disk := int(alone["disk"].iloc[0])) >= before:
        return f"Even without padding the export is {change_words(before, disk)}."
    rows = table[(table["mode"] != PLAN_ALONE) & (table["refused"] == "")]
    saved: dict[str, list[str]] = {}  # what is saved -> the modes that save it
    padded: dict[str, list[str]] = {}  # what nothing is saved of -> the modes
    for row in rows.to_dict("records"):
        if int(row["disk"]) < before:
            loaded = int(row["loaded"])
            memory = f" and {1 - loaded / before:.0%} in memory"
            if loaded >= before:
                memory = f"; in memory the model is {change_words(before, loaded)}"
            savings = f"{1 - int(row['disk']) / before:.0%} on disk{memory}."
            saved.setdefault(savings, []).append(str(row["mode"]))
        else:
            padded.setdefault(change_words(before, int(row["disk"])), []).append(str(row["mode"]))
    words = [
        f"{_in_words(modes)} {'save' if len(modes) > 1 else 'saves'} {savings}"
        for savings, modes in saved.items()
    ]
    if padded:
        sizes = [
            f"{_in_words(modes)} {'are' if len(modes) > 1 else 'is'} {size}"
            for size, modes in padded.items()
        ]
        words.insert(
            0,
            f"{', '.join(sizes)}: experts are padded to the widest of the model or layer, and some "
            "expert keeps all its neurons.",
        )
    if padded and not saved:
        words.append("Let neurons compete within each expert, which narrows all equally.")
    return " ".join(words)


def _in_words(modes: list[str]) -> str:
    """One, two and three."""
    return " and ".join(filter(None, (", ".join(modes[:-1]), modes[-1])))


def _ways_to_save(loaded: Loaded, table: pd.DataFrame) -> list[tuple[str, str, str]]:
    """Label, control and value of changes that save bytes, if the current mode saves none.

    `table` is of `neuron_plan_sizes`.
    """
    spec, before = loaded.choices.spec, loaded.model.checkpoint.nbytes
    rows = table[table["refused"] == ""]
    disks = dict(zip(rows["mode"].astype(str), rows["disk"].astype(int), strict=True))
    if disks[PLAN_ALONE] >= before or disks.get(spec.budget.width_mode, 0) < before:
        return []
    narrower = [
        (f"Choose {mode}: saves {1 - disks[mode] / before:.0%} on disk", "width_mode", str(mode))
        for mode in WIDTH_MODES
        if disks.get(mode, before) < before
    ]
    # A plan from a file cannot change its scope.
    if spec.spread.scope == NeuronScope.EXPERT or imported_plan(loaded.model) is not None:
        return narrower
    label = "Narrow all experts equally: neurons compete within each expert"
    return [(label, "neuron_scope", str(NeuronScope.EXPERT)), *narrower]


def _widths_table(sizes: NeuronSizes, before: int) -> pd.DataFrame:
    """The width modes as displayed, after the size without padding."""
    options, rows = {str(option.mode): option for option in sizes.options}, []
    for row in sizes.table.to_dict("records"):
        is_possible, option = not row["refused"], options.get(str(row["mode"]))
        width, readers = "", "for comparison"
        if option is not None:
            width = "" if option.refused else " to ".join(map(str, sorted(set(option.widths))))
            stock = "every reader" if option.stock else "load_pruned, trust_remote_code"
            readers = option.refused or stock
        rows.append(
            {
                "width mode": str(row["mode"]) if option else "without zeros",
                "on disk": format_bytes(int(row["disk"])) if is_possible else "-",
                "saved on disk": 1 - int(row["disk"]) / before if is_possible else None,
                "loaded": format_bytes(int(row["loaded"])) if is_possible else "-",
                "saved loaded": 1 - int(row["loaded"]) / before if is_possible else None,
                "expert FLOPs": int(row["expert_flops"]) if is_possible else None,
                "width loaded": width,
                "read by": readers,
            }
        )
    return pd.DataFrame(rows)


def neuron_layers_part(sizes: NeuronSizes) -> None:
    """Widths of the experts of each layer."""
    st.markdown("**Exact values**: neurons kept and expert widths per layer.")
    table = sizes.layers.drop(columns=["held"])
    table = table.drop(columns=[name for name in ("pinned", "dropped") if not table[name].any()])
    table_with_csv(
        table,
        "neuron-layers-table",
        "Neurons that stay in each layer, and how wide its experts are.",
        column_config={
            "share": ProgressColumn(
                "sparsity", format="percent", min_value=0, max_value=1, color="primary"
            ),
            "kept": "experts kept",
            "stay": "neurons kept",
            "least": "narrowest",
            "mean": NumberColumn("mean width", format="%.1f"),
            "most": "widest",
            "empty": NumberColumn(help="Experts without a neuron left."),
        },
        height="content" if len(table) <= _ROWS else 35 * (_ROWS + 1),
        key="neurons.layers",
    )
