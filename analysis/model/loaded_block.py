"""Which experts of a loaded layer have their weights in place: all, or a block of them."""

from torch import nn

_LOADED = "_moeprune_loaded_block"


def loaded_block(experts: nn.Module) -> range:
    """Ids of the experts that the module's stacked weights are of."""
    block: range = experts.__dict__.get(_LOADED, range(int(experts.num_experts)))  # type: ignore[arg-type]
    return block


def set_loaded_block(experts: nn.Module, block: range | None) -> None:
    """Say that its stacked weights are of these experts alone; None: of all."""
    if block is None:
        experts.__dict__.pop(_LOADED, None)
    else:
        experts.__dict__[_LOADED] = block
