"""The memory of a check that runs a model layer by layer, and its blocks of experts. No torch."""

from dataclasses import dataclass

from analysis.calibration.free import free_memory
from analysis.model.moe_model import MoEModel
from analysis.model.parts import layer_weights

# Besides the weights: the converted copy of a layer while loading, activations, libraries.
MEMORY_FACTOR, MEMORY_EXTRA = 1.25, 1 << 29
# A quantised layer is there a second time while it is dequantised, in parts and stacked.
_DEQUANTISING_FACTOR = 2.0
# Of what is free, for blocks; as in analysis/calibration/blocks.py.
_SHARE_OF_FREE = 0.8
_FLOAT64 = 8  # bytes; transformers has no grouped products for it, so experts run all at once


@dataclass(frozen=True, slots=True)
class LayerMemory:
    """What one layer at a time takes."""

    nbytes: int  # with the libraries
    at_once: int  # experts that are loaded at once; 0: all


def layer_memory(model: MoEModel, item: int, *, repaired: bool = False) -> LayerMemory:
    """With so many bytes for each weight: a layer, or if that is not free, blocks of its experts.

    The largest block that fits in 80% of what is free, at least one expert.
    """
    weights = layer_weights(model, heads=False)
    factor = _DEQUANTISING_FACTOR if model.quantisation else MEMORY_FACTOR
    # Repaired projections, about a third of a layer, lie beside those that they replace.
    times = item * factor * (4 / 3 if repaired else 1)
    whole = int(weights.largest() * times) + MEMORY_EXTRA
    free = free_memory()
    if whole <= free or item == _FLOAT64:
        return LayerMemory(whole, 0)
    around = weights.largest_around * times + MEMORY_EXTRA
    most = max(weights.counts.values()) - 1
    at_once = min(most, max(1, int((_SHARE_OF_FREE * free - around) / (weights.expert * times))))
    if at_once < 1:  # layers of one expert
        return LayerMemory(whole, 0)
    return LayerMemory(int(around + at_once * weights.expert * times), at_once)
