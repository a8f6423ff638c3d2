"""How many experts each layer keeps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING

from analysis.errors import PlanError
from analysis.numbers.sparsity import as_percent

if TYPE_CHECKING:
    from analysis.families.base import MoELayer


def count_problem(layer: MoELayer, keep: int) -> str | None:
    """Why a layer cannot keep this many experts, and the nearest numbers that work; None if it can.

    A router that chooses among groups needs the same number of experts in each.
    """
    sentences = _reason_and_remedy(layer, keep)
    return f"{'; '.join(filter(None, sentences))}." if sentences else None


def count_reason(layer: MoELayer, keep: int) -> str | None:
    """The reason of `count_problem` alone."""
    sentences = _reason_and_remedy(layer, keep)
    return sentences[0] if sentences else None


def _reason_and_remedy(layer: MoELayer, keep: int) -> tuple[str, str] | None:
    count, groups = layer.num_experts, layer.num_groups
    most = as_percent(count - layer.least_kept, count)
    if keep > count:
        return f"Layer {layer.index} would keep {keep} experts, but it has only {count}", ""
    would = f"Layer {layer.index} would keep {keep} of {count} experts, but its router"
    if keep < layer.top_k:
        return f"{would} picks {layer.top_k} per token", f"at most {most} of them can go"
    if keep < layer.least_kept:
        needs = f"needs {layer.least_per_group} in each of {groups} groups"
        return f"{would} {needs}", f"at most {most} can go"
    if keep % groups == 0:
        return None
    below, above = keep // groups * groups, (keep // groups + 1) * groups
    near = [number for number in (below, above) if number >= layer.least_kept]
    shares = [f"{number} ({as_percent(count - number, count)} sparsity)" for number in near]
    chooses = f"chooses among {groups} groups, each of which must keep as many"
    return f"{would} {chooses}", f"nearest: {' or '.join(shares)}"


def check_kept(layer: MoELayer, ids: Sequence[int]) -> None:
    """Refuse kept experts that break the layer's router or its groups."""
    if problem := count_problem(layer, len(ids)):
        raise PlanError(problem)
    if layer.num_groups == 1:
        return
    size = layer.num_experts // layer.num_groups
    counts = [sum(expert // size == group for expert in ids) for group in range(layer.num_groups)]
    if len(set(counts)) > 1:
        raise PlanError(
            f"The plan keeps {', '.join(map(str, counts))} experts in the {layer.num_groups} "
            f"groups of layer {layer.index}, but a router that chooses among groups needs the same "
            f"number in each; here {len(ids) // layer.num_groups} in each would work."
        )


@dataclass(frozen=True, slots=True)
class Allocation:
    """Experts kept in each layer: top_k <= keep <= num_experts, the same number in each group."""

    layers: tuple[MoELayer, ...]  # the sparse layers, in decoder order
    keep: tuple[int, ...]  # experts kept, one number for each of them

    def __post_init__(self) -> None:
        if len(self.layers) != len(self.keep):
            raise ValueError(f"{len(self.layers)} layers but {len(self.keep)} counts")
        for layer, keep in zip(self.layers, self.keep, strict=True):
            if problem := count_problem(layer, keep):
                raise PlanError(problem)

    @property
    def counts(self) -> dict[int, int]:
        """Layer -> experts that it keeps."""
        pairs = zip(self.layers, self.keep, strict=True)
        return {layer.index: keep for layer, keep in pairs}

    @property
    def removed(self) -> tuple[int, ...]:
        """Experts removed from each layer, in order of the layers."""
        pairs = zip(self.layers, self.keep, strict=True)
        return tuple(layer.num_experts - keep for layer, keep in pairs)

    @property
    def ratios(self) -> tuple[Fraction, ...]:
        """r_l, the fraction removed from each layer, exact."""
        pairs = zip(self.layers, self.removed, strict=True)
        return tuple(Fraction(count, layer.num_experts) for layer, count in pairs)


def allocation_of(layers: Sequence[MoELayer], removed: Sequence[int]) -> Allocation:
    """The allocation that removes this many experts from each layer."""
    keep = tuple(layer.num_experts - count for layer, count in zip(layers, removed, strict=True))
    return Allocation(tuple(layers), keep)
