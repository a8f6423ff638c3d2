"""What the layers of a model cost: bytes to read, and multiply-adds for a token."""

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from analysis.families.base import SlotKind
from analysis.model.heads import beside_text, prediction_heads
from analysis.model.moe_model import EMBEDDING, OUTPUT_HEAD, MoEModel
from analysis.progress import cost

_NUMBER = re.compile(r"\.(\d+)\.")
ENDS = -1  # all that lies outside of the layers


@dataclass(frozen=True, slots=True)
class LayerCosts:
    """By number of the layer, `ENDS` for the rest; all prediction heads count as one more layer."""

    num_bytes: Mapping[int, int]  # on disk
    active: Mapping[int, int]  # multiply-adds for a token
    around: Mapping[int, int]  # the part of them outside of routed experts

    def reading(self, *layers: int) -> float:
        """Cost of reading the weights of some layers."""
        return cost("read", sum(self.num_bytes.get(layer, 0) for layer in layers))

    def running(self, tokens: int, *layers: int, kind: str = "multiply") -> float:
        """Cost of running tokens through some layers; `kind` is of those that count forwards."""
        return cost(kind, tokens * sum(self.active.get(layer, 0) for layer in layers))

    def running_around(self, tokens: int, *layers: int) -> float:
        """The part of `running` for what surrounds routed experts."""
        return cost("multiply", tokens * sum(self.around.get(layer, 0) for layer in layers))


def layer_costs(model: MoEModel) -> LayerCosts:
    """The costs of the layers of a model, by its shapes."""
    num_bytes: Counter[int] = Counter()
    in_heads = {name for head in prediction_heads(model) for name in head.tensors}
    for entry in model.checkpoint.tensors.values():
        layer = model.depth if entry.name in in_heads else _layer_of(entry.name)
        num_bytes[layer] += entry.nbytes
    active = active_by_layer(model)
    if in_heads:  # each is much like the last layer
        active[model.depth] = active[model.depth - 1] * len(prediction_heads(model))
    return LayerCosts(num_bytes, active, active_by_layer(model, experts=False))


def active_by_layer(model: MoEModel, *, experts: bool = True) -> Counter[int]:
    """Parameters in the matrix products of one token, by layer: top_k experts, no embeddings.

    Without `experts`, those that surround routed experts.
    """
    layers = {layer.index: layer for layer in model.layers}
    non_text = beside_text(model)
    active: Counter[int] = Counter()
    for entry in model.checkpoint.tensors.values():
        is_embedding = "embed" in entry.name or "lm_head" in entry.name
        if is_embedding or len(entry.shape) < 2 or entry.name in non_text:
            continue
        slot, weights = model.slots.get(entry.name), model.num_weights(entry)
        if slot and slot.kind is not SlotKind.ROUTER:
            if not experts:
                continue
            layer = layers[slot.layer]
            weights = weights * layer.top_k // layer.num_experts
        active[_layer_of(entry.name)] += weights
    return active


def _layer_of(name: str) -> int:
    number = _NUMBER.search(name)
    return int(number[1]) if number else ENDS


def output_weights(model: MoEModel) -> int:
    """Weights of the output head, which the logits of a token multiply."""
    tables = (
        entry.numel
        for entry in model.checkpoint.tensors.values()
        if entry.name.endswith((OUTPUT_HEAD, EMBEDDING.rpartition("model.")[2]))
    )
    return max(tables, default=0)


def logits_cost(model: MoEModel, positions: int) -> float:
    """Cost of comparing the logits of two models at so many positions."""
    return cost("compare", positions * output_weights(model))
