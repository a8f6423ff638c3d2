"""What each width mode saves on disk and in memory, before anything is written."""

from dataclasses import dataclass, replace

from analysis.errors import ExportError, PlanError
from analysis.model.moe_model import MoEModel
from pruning.plan.kept import kept_widths
from pruning.plan.plan import NEURON_GRANULARITY, PruningPlan, fit_plan, untied_embedding
from pruning.plan.sizes import BYTES, total_size, width_sizes
from pruning.plan.widths import (
    DEFAULT_MULTIPLE,
    WidthChoice,
    WidthMode,
    WidthPlan,
    plan_widths,
    widths_config,
)
from pruning.surgery.heads import plan_heads
from pruning.surgery.shards import plan_shards
from pruning.surgery.widths import check_scales


@dataclass(frozen=True, slots=True)
class WidthOption:
    """What a plan saves in one width mode."""

    mode: WidthMode
    refused: str = ""  # why the mode is impossible; then the rest is empty
    disk_bytes: int = 0  # size of the shards, headers included
    loaded_bytes: int = 0  # size in memory, in the dtypes on disk
    widths: tuple[int, int] = (0, 0)  # smallest and largest width of a layer when loaded
    stock: bool = False  # plain transformers reads it; otherwise `load_pruned` does
    shared: int | None = None  # number of shared experts, if it changes


def width_options(
    model: MoEModel, plan: PruningPlan, multiple_of: int = DEFAULT_MULTIPLE
) -> tuple[WidthOption, ...]:
    """Every width mode, with what it saves or why it is impossible."""
    if plan.granularity != NEURON_GRANULARITY:
        raise PlanError("The plan removes whole experts only, so no width changes.")
    complete = fit_plan(plan, model)
    return tuple(width_option(model, complete, WidthChoice(m, multiple_of)) for m in WidthMode)


def width_option(
    model: MoEModel, plan: PruningPlan, choice: WidthChoice, *, weigh: bool = True
) -> WidthOption:
    """One width mode, with what it saves or why it is impossible.

    The plan is complete, see `fit_plan`, and removes neurons. Without `weigh`, shards are not laid
    out, which takes a second for a large model, and both sizes are 0.
    """
    try:
        widths = plan_widths(model, plan, choice)
        check_scales(model, widths)
    except (PlanError, ExportError) as error:
        return WidthOption(choice.mode, str(error))
    if widths is None:
        raise ValueError("a plan of whole experts has no widths")
    return option_with_sizes(model, plan, widths) if weigh else _bare_option(model, plan, widths)


def _bare_option(model: MoEModel, plan: PruningPlan, widths: WidthPlan) -> WidthOption:
    changes = widths_config(widths, model)
    counts = {len(ids) for ids in plan.kept.values()}
    return WidthOption(
        mode=widths.choice.mode,
        widths=(min(widths.loaded.values()), max(widths.loaded.values())),
        stock=not any(isinstance(value, list) for value in changes.values()) and len(counts) == 1,
        shared=widths.shared,
    )


def option_with_sizes(model: MoEModel, plan: PruningPlan, widths: WidthPlan) -> WidthOption:
    """What a complete plan saves with these widths."""
    shards = plan_shards(model, plan, plan_heads(model, plan, None, widths), widths)
    kept = kept_widths(plan.kept_neurons, plan.kept, model)
    is_untied = untied_embedding(model, plan) is not None
    loaded = width_sizes(model, kept, widths.choice, is_untied=is_untied).loaded
    return replace(
        _bare_option(model, plan, widths),
        disk_bytes=sum(shard.nbytes for shard in shards),
        loaded_bytes=int(total_size(loaded)[BYTES]),
    )
