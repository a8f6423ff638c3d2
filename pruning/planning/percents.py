"""The places of the slider of sparsity: those that leave every router enough experts."""

from collections.abc import Iterable
from dataclasses import replace
from fractions import Fraction

from analysis.families import MoELayer
from analysis.model import MoEModel
from analysis.sparsity import num_removed
from pruning.allocation import count_problem

SPARSITY_STEP = 5


def possible_percents(model: MoEModel) -> list[int]:
    """The sparsities that leave every router enough experts, in percent."""
    most = min((layer.num_experts - layer.least_kept) / layer.num_experts for layer in model.layers)
    steps = range(0, int(most * 100) + 1, SPARSITY_STEP)
    kinds = {replace(layer, index=0) for layer in model.layers}  # most layers are alike
    return [percent for percent in steps if _is_possible(kinds, percent)]


def _is_possible(layers: Iterable[MoELayer], percent: int) -> bool:
    # A router needs top_k experts, and one that chooses among groups the same number in each.
    share = Fraction(percent, 100)
    return not any(
        count_problem(layer, layer.num_experts - num_removed(layer.num_experts, share))
        for layer in layers
    )


def percent_removing(model: MoEModel, removed: int) -> int | None:
    """The place of the slider that removes so many experts in all; None, if there is none."""
    for percent in possible_percents(model):
        if removed == sum(layer.num_experts * percent // 100 for layer in model.layers):
            return percent
    return None
