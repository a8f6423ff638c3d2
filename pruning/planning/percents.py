"""The places of the slider of sparsity: those that leave every router enough experts."""

from dataclasses import replace
from fractions import Fraction
from functools import lru_cache

from analysis.errors import PlanError
from analysis.families import MoELayer
from analysis.model import MoEModel
from analysis.sparsity import as_percent, num_removed
from pruning.allocation import count_problem
from pruning.budget import SizeTarget, even_budget
from pruning.constraints import Constraints

SPARSITY_STEP = 5


def possible_percents(model: MoEModel) -> list[int]:
    """The sparsities that leave every router enough experts, in percent."""
    most = min((layer.num_experts - layer.least_kept) / layer.num_experts for layer in model.layers)
    kinds = {replace(layer, index=0) for layer in model.layers}  # most layers are alike

    def is_possible(layer: MoELayer, share: Fraction) -> bool:
        # A router needs top_k experts, and one that chooses among groups as many in each.
        removed = num_removed(layer.num_experts, share)
        return count_problem(layer, layer.num_experts - removed) is None

    return [
        percent
        for percent in range(0, int(most * 100) + 1, SPARSITY_STEP)
        if all(is_possible(layer, Fraction(percent, 100)) for layer in kinds)
    ]


@lru_cache(maxsize=32)
def shrink_sparsities(model: MoEModel, multiple_of: int = 1) -> dict[int, str]:
    """Share of the checkpoint's bytes, in percent -> the sparsity that makes it so much smaller.

    Empty where layers have different numbers of experts: no sparsity leaves them equal numbers.
    """
    found: dict[int, str] = {}
    sizes = {layer.num_experts for layer in model.layers}
    limits = Constraints(multiple_of)
    for percent in range(0, 100, SPARSITY_STEP) if len(sizes) == 1 else ():
        try:
            removed = even_budget(model, SizeTarget("shrink", f"{percent}%"), limits).floors[0]
        except PlanError:
            break  # neither can more go
        found[percent] = as_percent(removed, min(sizes)) if removed else "0%"
    return found


def percent_removing(model: MoEModel, removed: int) -> int | None:
    """The place of the slider that removes so many experts in all; None, if there is none."""
    for percent in possible_percents(model):
        if removed == sum(layer.num_experts * percent // 100 for layer in model.layers):
            return percent
    return None
