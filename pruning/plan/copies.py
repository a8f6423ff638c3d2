"""Plans for a quantised copy of the model that they were made for.

Checkpoints in packed integers cannot be calibrated, but a plan made for the model that was
quantised names the same experts. Names and shapes do not show that two checkpoints are one model:
base and chat models share them. Their routers, which are left out of a quantisation, do.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from analysis.errors import PlanError
from analysis.families.base import SlotKind
from analysis.model.widths import computed_widths
from analysis.numbers.elements import FLOAT_BYTES, as_float64
from pruning.plan.plan import PruningPlan, fit_plan, model_ref

if TYPE_CHECKING:
    from analysis.model.moe_model import MoEModel
    from analysis.numbers.arrays import FloatArray

# Of a router's norm, what rounding to float16 or bfloat16 can change; fine-tuning changes more.
_ROUNDING = 0.005


def plan_for_copy(plan: PruningPlan, original: MoEModel, copy: MoEModel) -> PruningPlan:
    """A plan of `original` as one of `copy`, complete; refused unless they are one model."""
    complete = fit_plan(plan, original)
    if plan.repair:
        raise PlanError(
            f"The plan's repair has bytes of {original.name}, which {copy.name} stores in another "
            "form; give the plan without its repair."
        )
    for what, one, other in (
        ("family", original.family.model_type, copy.family.model_type),
        ("layers", original.layers, copy.layers),
        ("depth", original.depth, copy.depth),
        ("hidden size", original.hidden_size, copy.hidden_size),
        ("widths of experts", computed_widths(original), computed_widths(copy)),
    ):
        if one != other:
            raise PlanError(
                f"{copy.name} is no quantised copy of {original.name}: their {what} differ; make "
                "a plan for this model."
            )
    for layer in original.layers:
        router, copied = (_router(model, layer.index) for model in (original, copy))
        # AWQ may scale the columns of a router, and the norm before it the other way; the scales
        # that fit best are taken out.
        squares = (router * router).sum(0)
        scales = (router * copied).sum(0) / np.where(squares > 0, squares, 1)
        residual = float(np.linalg.norm(copied - router * scales))
        differs = residual / (float(np.linalg.norm(copied)) or 1.0)  # as a part of the norm
        if not differs <= _ROUNDING:  # not a number either
            raise PlanError(
                f"{copy.name} is no quantised copy of {original.name}: the routers of layer "
                f"{layer.index} differ by {differs:.1%}; make a plan for this model."
            )
    return fit_plan(replace(complete, model=model_ref(copy)), copy)


def _router(model: MoEModel, layer: int) -> FloatArray:
    """The router's matrix of a layer; a row for each expert."""
    name = model.family.router_tensors[0].name
    routers = (item for item in model.located[layer] if item.slot.kind is SlotKind.ROUTER)
    entry = next(item.entry for item in routers if item.slot.role == name)
    if entry.dtype not in FLOAT_BYTES:
        raise PlanError(f"{entry.name} of {model.name} is quantised, so nothing tells the model.")
    with (model.checkpoint.path / entry.shard).open("rb") as file:
        file.seek(entry.start)
        return as_float64(file.read(entry.nbytes), entry.dtype).reshape(entry.shape)
