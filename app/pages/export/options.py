"""The options of an export: heads, padding, bfloat16 of FP8, a GGUF file, the list of experts."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final, Literal, get_args

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from analysis.errors import ExportError
from analysis.model.heads import prediction_heads
from analysis.model.moe_model import MoEModel
from analysis.model.other_files import other_files
from app.literal import literal
from app.loaded import CurrentPlan, Loaded
from app.session.data import settings
from app.session.state import one_of
from app.widgets.controls import say_unknown
from pruning.plan.heads import HeadChoice, HeadPlan, heads_bytes, heads_depend_on
from pruning.plan.plan import NEURON_GRANULARITY, PruningPlan, fit_plan
from pruning.plan.sizes import format_bytes
from pruning.plan.widths import WidthChoice, WidthPlan, plan_widths
from pruning.serving.engines import Contents, Verdict, contents_of, verdicts
from pruning.serving.gguf import converter_options, find_converter
from pruning.spec.options import GgufName
from pruning.spec.plan_options import ModeName
from pruning.surgery.dequantising import FP8, plan_dequantisation
from pruning.surgery.head_ranking import head_ranking
from pruning.surgery.heads import why_not_pruned
from pruning.surgery.padding import Padding, plan_padding
from pruning.surgery.shards import plan_shards
from pruning.surgery.width_sizes import WidthOption

Mtp = Literal["keep", "drop", "prune"]
MTP_WORDS: Final[Mapping[Mtp, str]] = {
    "drop": "Leave out",
    "prune": "Prune their experts",
    "keep": "Keep as they are",
}


@dataclass(frozen=True, eq=False)
class ExportChoice:
    """The options besides the plan."""

    # How prediction heads are treated; None for the default, or without heads.
    mtp: Mtp | None
    width: ModeName | None  # width mode of narrowed experts; None if no width changes
    widths: WidthPlan | None  # resulting widths; None if no width changes
    refused: str  # why this cannot be written; empty if it can
    num_bytes: int  # of the shards
    keep_list: bool  # also write kept_experts.json
    padding: Padding | None  # of layers that keep fewer experts; None for no padding
    width_multiple: int  # what loaded widths are rounded up to
    dequantise: bool  # whether FP8 becomes bfloat16
    gguf: GgufName | None  # type of the GGUF file beside the export; None for none

    def contents(self, model: MoEModel, plan: PruningPlan) -> Contents:
        """What decides who reads the export."""
        padded, heads = self.padding is not None, self.mtp in ("keep", "prune")
        contents = contents_of(model, plan, self.widths, padded=padded, keeps_heads=heads)
        return contents.dequantised() if self.dequantise else contents

    def verdicts(self, model: MoEModel, plan: PruningPlan) -> tuple[Verdict, ...]:
        """Compatibility of each program."""
        return verdicts(self.contents(model, plan))

    def why_no_gguf(self, model: MoEModel, plan: PruningPlan) -> str:
        """Why llama.cpp cannot have its file of this export; empty if it can."""
        try:
            converter_options(self.contents(model, plan))
        except ExportError as error:
            return str(error)
        return ""


def options_part(
    loaded: Loaded,
    current_plan: CurrentPlan,
    num_bytes: int,
    rare: DeltaGenerator,
    option: WidthOption | None = None,
) -> ExportChoice:
    """Draw the options of this plan, the rare ones in `rare`; return their values.

    `num_bytes` is for unchanged widths; `option` is the result of the chosen width mode,
    for a plan of neurons.
    """
    mtp, budget = _heads_choice(loaded.model, current_plan.plan), loaded.choices.spec.budget
    widths, refused = None, option.refused if option else ""
    if option and not refused:
        num_bytes, choice = option.disk_bytes, WidthChoice(option.mode, budget.width_multiple_of)
        widths = plan_widths(loaded.model, fit_plan(current_plan.plan, loaded.model), choice)
    if padding := _padding_choice(loaded.model, current_plan.plan):
        num_bytes += padding.nbytes
    heads = HeadChoice(mtp) if mtp else None
    num_bytes += heads_bytes(loaded.model, fit_plan(current_plan.plan, loaded.model), heads)
    if dequantise := option is None and _dequantise_choice(loaded.model, current_plan.plan):
        try:
            num_bytes += loaded.study.cached(_growth, loaded.model, current_plan.plan)
        except ExportError as error:
            refused = str(error)
    keep_list = rare.toggle(
        "Also write kept_experts.json",
        key="keep_list",
        help="A separate file with the ids of the kept experts per layer.",
    )
    width, multiple = budget.width_mode if option else None, budget.width_multiple_of
    with rare:
        gguf = _gguf_choice()
    return ExportChoice(
        mtp,
        width,
        widths,
        refused,
        num_bytes,
        keep_list,
        padding,
        multiple,
        dequantise,
        gguf,
    )


def _dequantise_choice(model: MoEModel, plan: PruningPlan) -> bool:
    """Offer bfloat16 in place of FP8; a repair is in bfloat16, and so is its whole export."""
    if model.quantisation != FP8:
        return False
    if plan.repair:
        st.caption("The repair is in bfloat16, so the whole export is: twice the bytes of FP8.")
        return True
    return st.toggle(
        "Write FP8 in bfloat16",
        key="dequantise",
        help="To repair, fine-tune or convert it. Twice the bytes.",
    )


def _growth(model: MoEModel, plan: PruningPlan) -> int:
    """Bytes that bfloat16 adds to an export of FP8, without prediction heads."""
    # A repair replaces bytes, which sizes do not know.
    fitted, heads = fit_plan(replace(plan, repair=None), model), HeadPlan(HeadChoice.DROP)
    in_bf16 = plan_dequantisation(model, is_asked_for=True)
    as_bf16, as_fp8 = (
        sum(tensor.nbytes for shard in shards for tensor in shard.tensors)
        for shards in (
            plan_shards(model, fitted, heads, dequantisation=in_bf16),
            plan_shards(model, fitted, heads),
        )
    )
    return as_bf16 - as_fp8


def _gguf_choice() -> GgufName | None:
    """Offer llama.cpp's file beside the export, where its converter is at hand."""
    try:
        find_converter(None)
    except ExportError:
        st.caption(
            "A GGUF file needs llama.cpp's converter: set $LLAMA_CPP to the folder of its source."
        )
        return None
    return st.selectbox(
        "Also write a GGUF file",
        get_args(GgufName),
        index=None,
        key="gguf",
        placeholder="None",
        help="By llama.cpp's converter, in this type, next to the folder of the export.",
    )


def _padding_choice(model: MoEModel, plan: PruningPlan) -> Padding | None:
    """Offer padding for layers of different counts, or say why it is impossible."""
    fitted = fit_plan(plan, model)
    is_even = len(set(map(len, fitted.kept.values()))) == 1
    if is_even or fitted.granularity == NEURON_GRANULARITY:
        return None
    try:
        padding = plan_padding(model, fitted)
    except ExportError as error:
        st.caption(literal(error))
        return None
    is_chosen = st.toggle(
        "Pad layers for engines",
        key="pad",
        help="Engines read one number of experts for all layers. Layers that keep fewer experts "
        "are padded with all-zero experts, which the router never chooses.",
    )
    st.caption(f"Padding adds {padding.in_words}, on disk and in memory.")
    return padding if is_chosen else None


def _heads_choice(model: MoEModel, plan: PruningPlan) -> Mtp | None:
    heads = prediction_heads(model)
    if not heads:
        return None
    depend = heads_depend_on(model, plan)
    # Heads kept whole with a pruned trunk would have a wrong expert count.
    options: list[Mtp] = ["drop", "prune"] if depend else ["keep", "drop"]
    ranking = head_ranking(model, plan, settings().store) if depend else None
    if depend and why_not_pruned(model, ranking):
        options = ["drop"]
    say_unknown("Prediction heads", "mtp", options, MTP_WORDS.__getitem__)
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
        help="config.json has one expert count for heads and layers, so heads cannot stay whole "
        "when layers are pruned."
        if depend
        else "Expert counts do not change, so the heads can stay.",
    )
    for file in (other_file for other_file in other_files(model) if other_file.is_read):
        st.caption(literal(f"The heads are in {file.name}, which no index lists."))
    if chosen == "prune" and ranking:
        more = heads_bytes(model, fit_plan(plan, model), HeadChoice.PRUNE)
        by = f"Ranked by {ranking.words}; they add {format_bytes(more)} to the plan."
        how = "" if ranking.runs else " Calibrate with --group heads to rank them by what they do."
        st.caption(literal(by + how))
    return one_of(chosen, options)
