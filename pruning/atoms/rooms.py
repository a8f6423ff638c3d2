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
    rooms, step = {}, constraints.multiple_of
    for layer, expert, width in (
        (n, e, w) for n in sorted(widths) for e, w in enumerate(widths[n])
    ):
        floor, what = min(constraints.floor, width), f"Expert {expert} of layer {layer}"
        low, high = -(-floor // step) * step, width // step * step
        if expert in constraints.dropped.get(layer, ()):
            low = high = 0
        elif layer in constraints.protected or expert in constraints.pinned.get(layer, ()):
            low = high = width
        elif 0 < width < step:
            raise PlanError(
                f"{what} has {width} neurons and cannot keep a multiple of {step}; the largest "
                f"multiple that works is {width}."
            )
        elif low > high:
            raise PlanError(
                f"{what} has {width} neurons, so it cannot keep {floor} or more in multiples of "
                f"{step}; the largest floor that works is {high}."
            )
        rooms[layer, expert] = Room(width, width - high, width - low, step)
    return rooms
