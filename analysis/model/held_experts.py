"""Which experts of a loaded layer have their weights in place: all, or a block of them."""

from torch import nn

_HELD = "_moeprune_held"


def held_experts(experts: nn.Module) -> range:
    """Ids of the experts that the module's stacked weights are of."""
    held: range = experts.__dict__.get(_HELD, range(int(experts.num_experts)))  # type: ignore[arg-type]
    return held


def hold(experts: nn.Module, held: range | None) -> None:
    """Say that its stacked weights are of these experts alone; None: of all."""
    if held is None:
        experts.__dict__.pop(_HELD, None)
    else:
        experts.__dict__[_HELD] = held
