"""Parameters and FLOPs of routed experts per token, by measured or even routing."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import TYPE_CHECKING

from analysis.families.base import MoELayer, SlotKind
from analysis.model.moe_model import MoEModel, is_expert_weight
from analysis.model.widths import expert_widths, neuron_axis, quantised_role
from pruning.plan.experts_per_token import selecting
from pruning.plan.kept_neurons import kept_ids

if TYPE_CHECKING:
    from analysis.lazy import pd
    from pruning.plan.plan import PruningPlan

# Layer -> tokens routed to each of its experts, by id; fractional in a blend.
Routing = Mapping[int, Sequence[float]]


def counted_routing(table: pd.DataFrame) -> Routing:
    """Routing from a table of columns layer, expert, num_tokens, one row per expert."""
    by_layer = table.sort_values(["layer", "expert"]).groupby("layer")
    return {int(str(layer)): tuple(rows["num_tokens"].tolist()) for layer, rows in by_layer}


def token_shares(
    layer: MoELayer, kept: Collection[int], routing: Routing | None
) -> dict[int, Fraction]:
    """Expert -> expected share of tokens routed to it; the shares sum to top_k.

    Equal shares if nothing was measured or no token reached a kept expert. The tokens of removed
    experts go to the others in proportion: a guess, which only a measurement of the pruned model
    could replace, and which may give a share above 1.
    """
    measured = routing[layer.index] if routing else ()
    counts = {expert: Fraction(measured[expert]) for expert in kept} if routing else {}
    total = sum(counts.values())
    if not total:
        return dict.fromkeys(kept, Fraction(layer.top_k, len(kept)))
    return {expert: layer.top_k * count / total for expert, count in counts.items()}


@dataclass(frozen=True, slots=True)
class ExpertShape:
    """Sizes of the experts of a layer."""

    # Bytes of one neuron: its entries in all projections and biases, and its part of the scale that
    # its block shares.
    neuron_bytes: Fraction
    neuron_params: int  # parameters in it
    neuron_weights: int  # parameters that a token is multiplied with: without biases
    fixed_bytes: int  # bytes of an expert of any width: its output bias
    fixed_params: int  # parameters in that

    def size(self, experts: int, neurons: int) -> tuple[int, int, int]:
        """Size of this many experts with this many neurons in total, see `pruning.plan.sizes`."""
        params = self.fixed_params * experts + self.neuron_params * neurons
        nbytes = self.fixed_bytes * experts + round(self.neuron_bytes * neurons)
        return nbytes, params, 2 * params


@lru_cache(maxsize=4)
def expert_shapes(model: MoEModel) -> Mapping[int, ExpertShape]:
    """Layer -> sizes of its experts, which differ in width only.

    For experts from which neurons can be cut, see `quantised_role`.
    """
    shapes = {}
    for layer in model.layers:
        widths = expert_widths(model)[layer.index]
        # An expert without neurons tells nothing, so the widest stands for all.
        example = max(range(len(widths)), key=lambda expert: widths[expert])
        neuron_bytes, (params, weights, fixed_bytes, fixed_params) = Fraction(0), (0, 0, 0, 0)
        for item in model.located[layer.index]:
            if item.slot.kind is SlotKind.ROUTER or item.slot.expert not in (None, example):
                continue
            experts = layer.num_experts if item.slot.expert is None else 1
            size = item.entry.nbytes // experts
            num_weights = model.num_weights(item.entry) // experts
            if neuron_axis(model.family, item.slot) is None:
                fixed_bytes, fixed_params = fixed_bytes + size, fixed_params + num_weights
            elif width := widths[example]:
                neuron_bytes += Fraction(size, width)
                params += num_weights // width
                weights += is_expert_weight(item.slot) * (num_weights // width)
        shapes[layer.index] = ExpertShape(neuron_bytes, params, weights, fixed_bytes, fixed_params)
    return shapes


@dataclass(frozen=True, slots=True)
class Active:
    """Expected use of routed experts per token."""

    params: int  # parameters of the experts that it is routed to
    # A multiplication and an addition per weight of these; no biases, activations or routing.
    flops: int


def active_experts(model: MoEModel, plan: PruningPlan, routing: Routing | None = None) -> Active:
    """What a token uses under a complete plan, see `fit_plan`.

    Removed neurons cost nothing: the sum over experts of share * width.
    """
    params, weights = Fraction(0), Fraction(0)
    is_by_width = plan.kept_neurons or not quantised_role(model)
    widths = expert_widths(model) if is_by_width else {}
    shapes = expert_shapes(model) if is_by_width else {}
    for own_layer in model.layers:
        layer = selecting(own_layer, plan.top_k)
        layer_widths = widths.get(layer.index, ())
        if not plan.kept_neurons.get(layer.index) and len(set(layer_widths)) < 2:
            totals = _uniform_use(model, layer)
            params, weights = params + totals[0], weights + totals[1]
            continue
        shape = shapes[layer.index]
        for expert, share in token_shares(layer, plan.kept[layer.index], routing).items():
            width = len(kept_ids(plan.kept_neurons, layer.index, expert, layer_widths[expert]))
            params += share * (shape.fixed_params + shape.neuron_params * width)
            weights += share * shape.neuron_weights * width
    return Active(round(params), round(2 * weights))


# A page compares several plans of one model at each move of a slider.
@lru_cache(maxsize=1024)
def _uniform_use(model: MoEModel, layer: MoELayer) -> tuple[Fraction, Fraction]:
    """Parameters and weights of top_k experts, if all have one width."""
    experts = [item for item in model.located[layer.index] if item.slot.kind is not SlotKind.ROUTER]
    counts = [model.num_weights(item.entry) for item in experts]
    weights = [n for n, item in zip(counts, experts, strict=True) if is_expert_weight(item.slot)]
    share = Fraction(layer.top_k, layer.num_experts)
    return share * sum(counts), share * sum(weights)
