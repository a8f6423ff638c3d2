"""How many experts each layer keeps."""

from dataclasses import dataclass
from fractions import Fraction

from analysis.errors import PlanError
from analysis.families import MoELayer


def too_few_kept(layer: MoELayer, keep: int) -> str:
    """Message for a layer that would keep fewer experts than its router picks."""
    most = 100 * (layer.num_experts - layer.top_k) / layer.num_experts
    return (
        f"Layer {layer.index} would keep {keep} of {layer.num_experts} experts, but its router "
        f"picks {layer.top_k} per token; at most {most:.4g}% of them can go."
    )


@dataclass(frozen=True, slots=True)
class Allocation:
    """Experts kept in each layer: top_k <= keep <= num_experts.

    Args:
        layers: the sparse layers, in decoder order.
        keep: experts kept, one number for each of them.

    Raises:
        PlanError: a layer would keep too few or too many.
    """

    layers: tuple[MoELayer, ...]
    keep: tuple[int, ...]

    def __post_init__(self) -> None:
        if len(self.layers) != len(self.keep):
            raise ValueError(f"{len(self.layers)} layers but {len(self.keep)} counts")
        for layer, keep in zip(self.layers, self.keep, strict=True):
            if keep < layer.top_k:
                raise PlanError(too_few_kept(layer, keep))
            if keep > layer.num_experts:
                raise PlanError(
                    f"Layer {layer.index} would keep {keep} experts, but it has only "
                    f"{layer.num_experts}."
                )

    @property
    def ratios(self) -> tuple[Fraction, ...]:
        """r_l, the fraction removed from each layer, exact."""
        return tuple(
            Fraction(layer.num_experts - keep, layer.num_experts)
            for layer, keep in zip(self.layers, self.keep, strict=True)
        )

    @property
    def num_pruned(self) -> int:
        """Experts removed from all layers together."""
        return sum(layer.num_experts for layer in self.layers) - sum(self.keep)
