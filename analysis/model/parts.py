"""How many weights are in memory together when a model runs one layer at a time. No torch."""

import re
from collections import Counter
from dataclasses import dataclass

from analysis.families.base import SlotKind
from analysis.model.heads import prediction_heads
from analysis.model.moe_model import MoEModel

_NUMBER = re.compile(r"\.(\d+)\.")


def weights_by_part(model: MoEModel) -> Counter[str]:
    """Part -> its weights: a layer by its number, every other tensor by its name."""
    parts: Counter[str] = Counter()
    for entry in model.checkpoint.tensors.values():
        parts[part_of(entry.name)] += model.num_weights(entry)
    return parts


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """How many weights layers have, routed experts apart."""

    around: Counter[str]  # by part, see `weights_by_part`
    routed: Counter[int]  # by layer, of all its experts
    counts: dict[int, int]  # by layer with experts, how many

    @property
    def expert(self) -> int:
        """Of the largest expert."""
        return max(weights // self.counts[layer] for layer, weights in self.routed.items())

    @property
    def largest_around(self) -> int:
        """Of the largest part without its experts."""
        return max(self.around.values())

    def largest(self, times: float = 1.0) -> float:
        """Of the largest part, if each weight of experts counts so many times."""
        layers = (times * weights + self.around[str(n)] for n, weights in self.routed.items())
        return max(*layers, self.largest_around)


def layer_weights(model: MoEModel, *, heads: bool) -> LayerWeights:
    """Of a model, with or without its prediction heads, which are loaded whole."""
    in_heads = {name for head in prediction_heads(model) for name in head.tensors}
    counts = {layer.index: layer.num_experts for layer in model.layers}
    around, routed = Counter[str](), Counter[int]()
    for name, entry in model.checkpoint.tensors.items():
        slot, weights = model.slots.get(name), model.num_weights(entry)
        if name in in_heads:
            around[part_of(name)] += weights if heads else 0
        elif slot is None or slot.kind is SlotKind.ROUTER:
            around[part_of(name)] += weights
        elif slot.layer in counts:
            routed[slot.layer] += weights
    return LayerWeights(around, routed, counts)


def part_of(tensor: str) -> str:
    """The part of a tensor, see `weights_by_part`."""
    number = _NUMBER.search(tensor)
    return number[1] if number else tensor


def stack_bytes(model: MoEModel, item: int) -> dict[int, int]:
    """Layer -> bytes of memory that its experts are stacked in, so many for a weight.

    What is dequantised, or is one tensor on disk already, is not stacked.
    """
    if model.quantisation or any(slot.kind is SlotKind.STACKED for slot in model.slots.values()):
        return {}
    routed = layer_weights(model, heads=False).routed
    return {layer: item * routed[layer] for layer in sorted(routed)}
