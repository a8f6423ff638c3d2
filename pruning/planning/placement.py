"""Placement: which experts stay on the device when nothing is deleted, and what they serve.

All other weights go to the device first; what is left of its budget holds routed experts. Engines
that place single experts take the best of each layer's ranking. llama.cpp keeps a layer's experts
in one tensor, so there whole layers stay or go.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np

from analysis.errors import PlanError
from analysis.model.widths import computed_widths
from pruning.plan.bits import OWN
from pruning.plan.budget import Budget
from pruning.plan.expert_sizes import check_fewer, expert_bytes_in_bits
from pruning.plan.sizes import BYTES, ModelPart, format_bytes, size_up, tensors_of, total_size
from pruning.plan.units import open_units
from pruning.schedules import spend

if TYPE_CHECKING:
    from analysis.model.moe_model import MoEModel
    from analysis.numbers.arrays import FloatArray
    from pruning.planning.ranking import Ranking

ExpertBytes = Mapping[int, Sequence[int]]  # layer -> bytes of each of its experts


@dataclass(frozen=True, slots=True)
class LayerPlacement:
    """The experts of a layer, and where they are."""

    layer: int
    device: tuple[int, ...]  # ids, ascending
    host: tuple[int, ...]  # ids, ascending
    device_bytes: int
    host_bytes: int
    # Share of the layer's routed choices that the experts on the device serve, 0..1; None: unknown.
    served: float | None
    choices: float  # routed choices of the layer, a share of all layers' together

    @property
    def is_whole(self) -> bool:
        """Whether all experts are on the device."""
        return not self.host


@dataclass(frozen=True, slots=True)
class Placement:
    """The experts of all layers, and where they are."""

    layers: tuple[LayerPlacement, ...]
    other_bytes: int  # of weights on the device besides routed experts

    @property
    def device_bytes(self) -> int:
        """Bytes of weights on the device."""
        return self.other_bytes + sum(layer.device_bytes for layer in self.layers)

    @property
    def host_bytes(self) -> int:
        """Bytes of experts off the device."""
        return sum(layer.host_bytes for layer in self.layers)

    @property
    def experts_on_device(self) -> int:
        """Experts on the device, of all layers."""
        return sum(len(layer.device) for layer in self.layers)

    @property
    def host_layers(self) -> tuple[int, ...]:
        """Layers with experts off the device."""
        return tuple(layer.layer for layer in self.layers if not layer.is_whole)

    @property
    def served(self) -> float | None:
        """Share of all routed choices that the experts on the device serve; None: unknown."""
        shares = [(layer.choices, layer.served) for layer in self.layers]
        if any(served is None for _, served in shares):
            return None
        return sum(choices * served for choices, served in shares if served is not None)


def other_bytes(model: MoEModel) -> int:
    """Bytes of all weights but routed experts and prediction heads, as stored."""
    apart = (ModelPart.EXPERTS, ModelPart.HEADS)
    parts = {part: size for part, size in tensors_of(model).source.items() if part not in apart}
    return int(total_size(parts)[BYTES])


def expert_bytes(model: MoEModel, bits: str = OWN) -> ExpertBytes:
    """Bytes of each expert, as stored or in fewer bits."""
    if bits == OWN:
        sizes = tensors_of(model).experts.items()
        return {layer: rows[:, BYTES].tolist() for layer, rows in sizes}
    check_fewer(model, bits)
    return {
        layer: [expert_bytes_in_bits(model, layer, width, bits) for width in widths]
        for layer, widths in computed_widths(model).items()
    }


def room_for_experts(model: MoEModel, budget: int) -> int:
    """Bytes of the budget that other weights leave; refused if these alone exceed it."""
    if (needed := other_bytes(model)) > budget:
        raise PlanError(
            f"The weights of {model.name} besides routed experts take {format_bytes(needed)}, more "
            f"than --budget {format_bytes(budget)}; give {size_up(needed)} or more."
        )
    return budget - needed


def place_experts(
    ranking: Ranking, sizes: ExpertBytes, room: int, counts: FloatArray | None
) -> Placement:
    """The most experts that fit, by the ranking and the schedule of its spec.

    `counts` (layers, experts) are routed tokens, NaN beyond a layer's experts; None if unknown. One
    expert more, where the schedule has it next, would not fit.
    """
    model, schedule, units = (
        ranking.model,
        ranking.spec.spread.schedule,
        open_units(ranking.model.layers),
    )
    ids = iter(ranking.table.sort_values(["layer", "rank"])["expert"].tolist())
    orders = [list(islice(ids, layer.num_experts)) for layer in model.layers]

    def on_device(removed: int) -> dict[int, tuple[int, ...]]:
        budget = Budget(removed, "count", str(removed))
        lost = spend(schedule, units, budget, ranking.evidence)
        return {
            layer.index: tuple(sorted(order[: len(order) - count]))
            for layer, order, count in zip(model.layers, orders, lost, strict=True)
        }

    def fits(removed: int) -> bool:
        chosen = on_device(removed)
        return sum(sizes[layer][expert] for layer in chosen for expert in chosen[layer]) <= room

    removed = bisect_left(range(sum(units.sizes)), True, key=fits)
    return placement_of(model, sizes, on_device(removed), counts)


def place_layers(
    model: MoEModel, sizes: ExpertBytes, room: int, counts: FloatArray | None
) -> Placement:
    """The whole layers that fit: those first that serve most routed choices a byte.

    With one number of experts per token everywhere, every layer serves the same share, so that only
    bytes tell layers apart. Of equal ones the last stay, as with llama.cpp's `--n-cpu-moe`.
    """
    chosen: dict[int, tuple[int, ...]] = {}
    totals = {layer: sum(sizes[layer]) for layer in sizes}
    in_order = sorted(model.layers, key=lambda n: (-n.top_k / max(totals[n.index], 1), -n.index))
    for layer in in_order:
        if totals[layer.index] <= room:
            room -= totals[layer.index]
            chosen[layer.index] = tuple(range(layer.num_experts))
    return placement_of(model, sizes, chosen, counts)


def placement_of(
    model: MoEModel,
    sizes: ExpertBytes,
    device: Mapping[int, Sequence[int]],
    counts: FloatArray | None,
) -> Placement:
    """The placement with these experts on the device; a layer that is absent has none there."""
    top_k = sum(layer.top_k for layer in model.layers)
    total = 0.0 if counts is None else float(np.nansum(counts))
    layers = []
    for row, layer in enumerate(model.layers):
        here = tuple(device.get(layer.index, ()))
        there = tuple(sorted(set(range(layer.num_experts)) - set(here)))
        nbytes, of_layer = sizes[layer.index], None if counts is None else counts[row]
        chosen = 0.0 if of_layer is None else float(np.nansum(of_layer))
        layers.append(
            LayerPlacement(
                layer=layer.index,
                device=here,
                host=there,
                device_bytes=sum(nbytes[expert] for expert in here),
                host_bytes=sum(nbytes[expert] for expert in there),
                served=_share(of_layer, here, whole=not there),
                choices=chosen / total if total else layer.top_k / top_k,
            )
        )
    return Placement(tuple(layers), other_bytes(model))


def share_served(placement: Placement, counts: FloatArray) -> float:
    """The share of all routed choices of another run that the experts on the device serve, 0..1.

    `counts` (layers, experts): see `place_experts`.
    """
    rows = zip(placement.layers, counts, strict=True)
    return float(sum(row[list(layer.device)].sum() for layer, row in rows) / np.nansum(counts))


def _share(counts: FloatArray | None, experts: Sequence[int], *, whole: bool) -> float | None:
    """The share of a layer's routed choices that these experts hold; of all or none it is known."""
    if whole or not experts:
        return float(whole)
    if counts is None or not (total := float(np.nansum(counts))):
        return None
    return float(counts[list(experts)].sum()) / total
