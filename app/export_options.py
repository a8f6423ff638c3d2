"""The choices of an export: prediction heads, widths of experts, a list of what stayed."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

import streamlit as st

from analysis.heads import prediction_heads
from analysis.model import MoEModel
from app.planning import Shown
from app.state import View
from pruning.atoms.widths import DEFAULT_MULTIPLE, WidthChoice, WidthMode, WidthPlan, plan_widths
from pruning.engines import Verdict, contents_of, verdicts
from pruning.heads import heads_depend_on
from pruning.plan import ATOMIC_GRANULARITY, PruningPlan
from pruning.sizes import format_bytes
from pruning.surgery.width_sizes import WidthOption, width_options

Mtp = Literal["keep", "drop", "prune"]
WidthName = Literal["uniform", "per-layer", "ragged"]
MTP_WORDS: Final[Mapping[Mtp, str]] = {
    "drop": "Leave out",
    "prune": "Prune by their weights",
    "keep": "Keep as they are",
}


@dataclass(frozen=True, eq=False)
class ExportChoice:
    """What is chosen besides the plan.

    Args:
        mtp: what becomes of prediction heads; None for the default, or where there are none.
        width: how experts of other widths are stored; None where none changes.
        widths: the widths that it gives; None where none changes.
        refused: why this cannot be written; empty where it can.
        num_bytes: of the shards.
        keep_list: also write kept_experts.json.
    """

    mtp: Mtp | None
    width: WidthName | None
    widths: WidthPlan | None
    refused: str
    num_bytes: int
    keep_list: bool

    def verdicts(self, model: MoEModel, plan: PruningPlan) -> tuple[Verdict, ...]:
        """Of each program, whether it reads the export."""
        return verdicts(contents_of(model, plan, self.widths))


def options_part(view: View, shown: Shown, num_bytes: int) -> ExportChoice:
    """Draw the choices that this plan has; what they say.

    Raises:
        UserError: the checkpoint has tensors that cannot be cut.
    """
    mtp = _heads_choice(view.model, shown.plan)
    refused, width, widths = "", None, None
    if shown.plan.granularity == ATOMIC_GRANULARITY:
        option = _width_choice(view.model, shown.plan)
        width, refused = _width_name(option.mode), option.refused
        if not refused:
            num_bytes = option.disk_bytes
            widths = plan_widths(view.model, shown.plan, WidthChoice(option.mode))
    keep_list = st.toggle(
        "Also write kept_experts.json",
        key="keep_list",
        help="Layer, and the ids of the experts that stayed, as a file of its own.",
    )
    return ExportChoice(mtp, width, widths, refused, num_bytes, keep_list)


def _heads_choice(model: MoEModel, plan: PruningPlan) -> Mtp | None:
    heads = prediction_heads(model)
    if not heads:
        return None
    depend = heads_depend_on(model, plan)
    # Kept whole beside a pruned trunk, their experts would be counted wrongly.
    options: list[Mtp] = ["drop", "prune"] if depend else ["keep", "drop"]
    if st.session_state.get("mtp", options[0]) not in options:
        st.session_state["mtp"] = options[0]
    chosen = st.segmented_control(
        f"Prediction heads (MTP): {', '.join(head.name for head in heads)}",
        options,
        default=options[0],
        key="mtp",
        bind="query-params",
        required=True,
        format_func=lambda name: MTP_WORDS[name],
        help="config.json counts the experts of heads by the same key as those of the model, so "
        "they cannot stay whole beside pruned layers."
        if depend
        else "No count changes, so the heads can stay.",
    )
    return chosen if chosen in options else options[0]


def _width_name(mode: WidthMode) -> WidthName:
    names: Mapping[WidthMode, WidthName] = {
        WidthMode.UNIFORM: "uniform",
        WidthMode.PER_LAYER: "per-layer",
        WidthMode.RAGGED: "ragged",
    }
    return names[mode]


def _width_choice(model: MoEModel, plan: PruningPlan) -> WidthOption:
    found = {str(option.mode): option for option in width_options(model, plan, DEFAULT_MULTIPLE)}
    names = list(found)
    chosen = st.segmented_control(
        "Widths of the experts",
        names,
        default=names[0],
        key="width",
        bind="query-params",
        required=True,
        help="This plan removes neurons. uniform: one width for the model, which every reader "
        "takes. per-layer: one a layer. ragged: each expert its own on disk.",
    )
    st.dataframe(
        {
            "width mode": names,
            "on disk": [_size(option.disk_bytes, option) for option in found.values()],
            "loaded": [_size(option.loaded_bytes, option) for option in found.values()],
            "read by": [_reader(option) for option in found.values()],
        },
        hide_index=True,
        key="export.widths",
    )
    return found[chosen if chosen in found else names[0]]


def _size(size: int, option: WidthOption) -> str:
    return "-" if option.refused else format_bytes(size)


def _reader(option: WidthOption) -> str:
    return option.refused or ("every reader" if option.stock else "load_pruned")
