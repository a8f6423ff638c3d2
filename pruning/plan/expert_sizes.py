"""What the routed experts of a layer take: as stored, per token, and in fewer bits.

Parameters and FLOPs per token are by measured or even routing; for bits see `pruning.plan.bits`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from analysis.errors import PlanError
from analysis.families.base import MoELayer, SlotKind
from analysis.model.moe_model import MoEModel, is_expert_weight
from analysis.model.widths import computed_widths, expert_widths, neuron_axis, quantised_role
from pruning.plan.bits import FORMATS, OWN
from pruning.plan.experts_per_token import selecting
from pruning.plan.kept import kept_ids

if TYPE_CHECKING:
    from analysis.lazy import pd
    from pruning.plan.plan import PruningPlan

_BITS_OF_A_BYTE = 8
_K_ROW = 256  # weights; rows of llama.cpp's types of K are multiples
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


class _Experts(NamedTuple):
    """What sizes in fewer bits need of the experts of a layer."""

    widths: tuple[int, ...]
    columns: int  # of a neuron's input
    inner: int  # matrices of it: gate and up, or up alone
    biases: int  # bytes of all experts' together

    def nbytes(self, widths: Iterable[int], bits: str) -> int:
        """Bytes of experts with these numbers of neurons, their matrices in a format."""
        counts, form = Counter(widths), FORMATS[bits]
        neurons = sum(width * experts for width, experts in counts.items())
        nbytes = self.biases * neurons // max(sum(self.widths), 1) if self.biases else 0
        nbytes += self.inner * neurons * form.row_bytes(self.columns)
        return nbytes + sum(
            experts * self.columns * form.row_bytes(width) for width, experts in counts.items()
        )


@lru_cache(maxsize=4)
def _experts_of(model: MoEModel) -> dict[int, _Experts]:
    """Layer -> its experts."""
    widths, experts = computed_widths(model), {}
    for layer in model.layers:
        slots = [item for item in model.located[layer.index] if item.slot.kind != SlotKind.ROUTER]
        inner = 2 if any("gate" in str(item.slot.projection) for item in slots) else 1
        biases = sum(item.entry.nbytes for item in slots if item.slot.role == "bias")
        experts[layer.index] = _Experts(
            widths[layer.index], model.expert_output_size, inner, biases
        )
    return experts


def bytes_in_bits(model: MoEModel, plan: PruningPlan, layer: int) -> int:
    """Bytes of what a complete plan keeps of a layer's experts in its bits; biases as they are."""
    neurons = plan.kept_neurons.get(layer, {})
    experts = _experts_of(model)[layer]
    kept = [
        len(neurons[expert]) if expert in neurons else experts.widths[expert]
        for expert in plan.kept[layer]
    ]
    return experts.nbytes(kept, plan.bits_in(layer))


def whole_bytes_in_bits(model: MoEModel, layer: int, kept: Iterable[int], bits: str) -> int:
    """Bytes of whole experts of a layer, by their ids, in fewer bits."""
    experts = _experts_of(model)[layer]
    return experts.nbytes([experts.widths[expert] for expert in kept], bits)


def expert_bytes_in_bits(model: MoEModel, layer: int, width: int, bits: str) -> int:
    """Bytes of an expert of this layer with so many neurons, in fewer bits."""
    return _experts_of(model)[layer].nbytes([width], bits)


def fits_k_types(model: MoEModel) -> bool:
    """Whether the experts' rows fit llama.cpp's types of K; it takes a larger type if not."""
    widths = {width for layer in computed_widths(model).values() for width in layer}
    return not any(row % _K_ROW for row in {model.expert_output_size, *widths})


@lru_cache(maxsize=4)
def own_bits(model: MoEModel) -> float:
    """Bits that an expert weight takes in the checkpoint, its scales included."""
    nbytes = weights = 0
    for layer in model.layers:
        for item in model.located[layer.index]:
            if item.slot.kind is SlotKind.ROUTER or item.slot.holds_ids:
                continue
            nbytes += item.entry.nbytes
            weights += model.num_weights(item.entry) * is_expert_weight(item.slot)
    return _BITS_OF_A_BYTE * nbytes / weights


def fewer_bits(model: MoEModel) -> tuple[str, ...]:
    """The formats that make the checkpoint's experts smaller, the most bits first."""
    stored = own_bits(model)
    return tuple(name for name, form in FORMATS.items() if form.per_weight < stored)


def check_fewer(model: MoEModel, bits: str) -> None:
    """Refuse bits that would not make the checkpoint's experts smaller."""
    fewer = fewer_bits(model)
    if bits != OWN and bits not in fewer:
        raise PlanError(
            f"{model.name} stores its experts in {own_bits(model):.3g} bits a weight, and {bits} "
            f"would take {FORMATS[bits].per_weight:.3g}; give "
            f"{', '.join(fewer) or 'no --bits'}, or {OWN} for what is stored."
        )
