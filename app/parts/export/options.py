"""Options of an export: prediction heads, expert widths, a list of kept experts."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

import streamlit as st

from analysis.heads import prediction_heads
from analysis.model import MoEModel
from app.charts.context import Context
from app.frame.controls import one_of
from pruning.atoms.widths import WidthChoice, WidthPlan, plan_widths
from pruning.engines import Verdict, contents_of, verdicts
from pruning.heads import heads_depend_on
from pruning.plan import PruningPlan, fit_plan
from pruning.planning.make import CurrentPlan
from pruning.requests.options import ModeName
from pruning.surgery.width_sizes import WidthOption

Mtp = Literal["keep", "drop", "prune"]
MTP_WORDS: Final[Mapping[Mtp, str]] = {
    "drop": "Leave out",
    "prune": "Prune by their weights",
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
    width_multiple: int  # what loaded widths are rounded up to

    def verdicts(self, model: MoEModel, plan: PruningPlan) -> tuple[Verdict, ...]:
        """Compatibility of each program."""
        return verdicts(contents_of(model, plan, self.widths))


def options_part(
    context: Context, shown: CurrentPlan, num_bytes: int, option: WidthOption | None = None
) -> ExportChoice:
    """Draw the options of this plan; return their values.

    `num_bytes` is for unchanged widths; `option` is the result of the chosen width mode,
    for a plan of neurons.
    """
    mtp, asked = _heads_choice(context.model, shown.plan), context.plan
    widths, refused = None, option.refused if option else ""
    if option and not refused:
        num_bytes, choice = option.disk_bytes, WidthChoice(option.mode, asked.width_multiple)
        widths = plan_widths(context.model, fit_plan(shown.plan, context.model), choice)
    keep_list = st.toggle(
        "Also write kept_experts.json",
        key="keep_list",
        help="A separate file with the ids of the kept experts per layer.",
    )
    width, multiple = asked.width_mode if option else None, asked.width_multiple
    return ExportChoice(mtp, width, widths, refused, num_bytes, keep_list, multiple)


def _heads_choice(model: MoEModel, plan: PruningPlan) -> Mtp | None:
    heads = prediction_heads(model)
    if not heads:
        return None
    depend = heads_depend_on(model, plan)
    # Heads kept whole with a pruned trunk would have a wrong expert count.
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
        help="config.json has one expert count for heads and layers, so heads cannot stay whole "
        "when layers are pruned."
        if depend
        else "Expert counts do not change, so the heads can stay.",
    )
    return one_of(chosen, options)
