"""Bytes of experts in fewer bits, see `pruning.plan.bits`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from analysis.errors import PlanError
from analysis.families.base import SlotKind
from analysis.model.moe_model import MoEModel, is_expert_weight
from analysis.model.widths import computed_widths
from pruning.plan.bits import FORMATS, OWN

if TYPE_CHECKING:
    from pruning.plan.plan import PruningPlan

_BITS_OF_A_BYTE = 8
_K_ROW = 256  # weights; rows of llama.cpp's types of K are multiples


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
