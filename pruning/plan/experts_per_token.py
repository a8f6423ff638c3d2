"""Fewer experts per token than a model selects: the bound, and the words. No torch.

A router that selects fewer computes as one whose configuration says so. Memory stays.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from analysis.errors import PlanError

if TYPE_CHECKING:
    from analysis.families.base import MoELayer
    from analysis.model.moe_model import MoEModel


def check_top_k(model: MoEModel, top_k: int) -> None:
    """Refuse a number of experts per token that is not below the model's own.

    More would be another model than was trained. Groups of a router allow every smaller number.
    """
    if model.family.fixed_top_k:
        raise PlanError(
            f"The router of {model.family.label} always selects {model.family.fixed_top_k} "
            "experts per token, whatever its configuration says; leave the top-k out."
        )
    if any(tensor.holds_ids for tensor in model.family.router_tensors):
        for layer in model.layers:
            if any(tensor.slot.holds_ids for tensor in model.located[layer.index]):
                raise PlanError(
                    f"Layer {layer.index} of {model.name} looks experts up by token id, in a table "
                    f"of {layer.top_k} for each token; leave the top-k out."
                )
    own = max(layer.top_k for layer in model.layers)
    if not 1 <= top_k < own:
        raise PlanError(
            f"{model.name} selects {own} experts per token; "
            + (f"choose a top-k of 1 to {own - 1}." if own > 1 else "there are no fewer.")
        )


def possible_top_k(model: MoEModel) -> tuple[int, ...]:
    """What a plan may say of experts per token: 0, and the smaller numbers, largest first."""
    own = max(layer.top_k for layer in model.layers)
    try:
        check_top_k(model, 1)
    except PlanError:
        return (0,)
    return (0, *range(own - 1, 0, -1))


def selecting(layer: MoELayer, top_k: int) -> MoELayer:
    """The layer with a router that selects at most so many; 0 leaves it as it is."""
    return replace(layer, top_k=min(layer.top_k, top_k)) if top_k else layer


def top_k_words(top_k: int) -> str:
    """What follows the name of a plan that selects fewer experts per token; else empty."""
    return f", top-{top_k}" if top_k else ""
