"""Schedules: how a budget is spread over the layers."""

from collections.abc import Sequence
from decimal import Decimal
from fractions import Fraction

from analysis.families import MoELayer
from analysis.sparsity import num_removed, parse_sparsity
from pruning.allocation import Allocation

__all__ = ["parse_sparsity", "uniform"]


def uniform(layers: Sequence[MoELayer], sparsity: str | Fraction | Decimal | float) -> Allocation:
    """Remove floor(rho * n) experts from every layer.

    Args:
        layers: the sparse layers.
        sparsity: rho, such as "0.5" or "50%". A float counts by its shortest decimal form, so
            0.55 is 55/100 and not the binary number next to it.

    Raises:
        PlanError: the sparsity cannot be read, or leaves fewer than top_k experts.
    """
    rho = parse_sparsity(sparsity if isinstance(sparsity, Fraction) else str(sparsity))
    keep = tuple(layer.num_experts - num_removed(layer.num_experts, rho) for layer in layers)
    return Allocation(tuple(layers), keep)
