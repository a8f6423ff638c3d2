"""Rooms of experts: how many of its neurons each may lose under the constraints of a plan."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from analysis.errors import PlanError
from analysis.families import MoELayer
from pruning.allocation import check_kept
from pruning.constraints import Constraints, Room, rooms_of

# Decoder index and id of an expert.
ExpertKey = tuple[int, int]


def kept_experts(
    layers: Sequence[MoELayer], constraints: Constraints
) -> dict[int, tuple[int, ...]]:
    """Layer -> experts that stay, of the layers that lose whole ones."""
    if constraints.fixed or constraints.locked:
        raise PlanError(
            "Layers cannot be set or locked by hand in a plan of neurons; protect layers, pin or "
            "drop experts, or name the neurons that stay in a file."
        )
    # What a neuron plan counts differently is left out; the rest must hold for experts as well.
    rooms_of(layers, replace(constraints, multiple_of=1, floor=0))
    kept = {}
    for layer in layers:
        if gone := constraints.dropped.get(layer.index):
            kept[layer.index] = tuple(e for e in range(layer.num_experts) if e not in gone)
            check_kept(layer, kept[layer.index])
    return kept


def atom_rooms(
    widths: Mapping[int, Sequence[int]], constraints: Constraints
) -> dict[ExpertKey, Room]:
    """How many neurons each expert may lose, in order of layer and id.

    An expert keeps a multiple of `multiple_of`, at least the floor, and loses nothing where it is
    pinned or its layer protected; a dropped one loses all. `widths` are neurons of every expert, by
    layer.
    """
    rooms = {}
    for layer in sorted(widths):
        for expert, width in enumerate(widths[layer]):
            least, most = _range((layer, expert), width, constraints)
            rooms[layer, expert] = Room(width, least, most, constraints.multiple_of)
    return rooms


def _range(key: ExpertKey, width: int, constraints: Constraints) -> tuple[int, int]:
    """Fewest and most neurons that an expert loses."""
    layer, expert = key
    if expert in constraints.dropped.get(layer, frozenset()):
        return width, width
    if layer in constraints.protected or expert in constraints.pinned.get(layer, frozenset()):
        return 0, 0
    step, floor = constraints.multiple_of, min(constraints.floor, width)
    if 0 < width < step:
        raise PlanError(
            f"Expert {expert} of layer {layer} has {width} neurons and cannot keep a multiple of "
            f"{step}; the largest multiple that works is {width}."
        )
    low, high = -(-floor // step) * step, width // step * step
    if low > high:
        raise PlanError(
            f"Expert {expert} of layer {layer} has {width} neurons, so it cannot keep {floor} or "
            f"more in multiples of {step}; the largest floor that works is {high}."
        )
    return width - high, width - low
