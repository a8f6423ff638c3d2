"""Constraints of a plan besides its budget, and the room that they leave each layer."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from itertools import groupby
from typing import TYPE_CHECKING, Any

from analysis.errors import PlanError
from analysis.numbers.sparsity import as_percent, num_removed, parse_sparsity

if TYPE_CHECKING:
    from analysis.families.base import MoELayer

Experts = Mapping[int, frozenset[int]]
MOST_DIGITS = 6  # of a layer, an expert or a count
_LAYERS = re.compile(r"\d+(-\d+)?(,\d+(-\d+)?)*")


@dataclass(frozen=True)
class Constraints:
    """What a person asks of a plan besides its budget; layers are decoder indices.

    In a plan of neurons, `multiple_of` and `floor` count the neurons that each expert keeps, a
    pinned expert loses none, and a dropped one goes as a whole, with its row of the router.
    """

    multiple_of: int = 1  # layers keep a multiple of this many experts; protected ones are exempt
    protected: frozenset[int] = frozenset()  # layers that lose nothing
    # Layer -> experts that are never removed.
    pinned: Experts = field(default_factory=dict, hash=False)
    # Layer -> experts that are always removed.
    dropped: Experts = field(default_factory=dict, hash=False)
    # Layer -> number of experts that it keeps, whatever the schedule says.
    fixed: Mapping[int, int] = field(default_factory=dict, hash=False)
    # Layers that keep what the schedule gives them without `fixed`.
    locked: frozenset[int] = frozenset()
    floor: int = 0  # layers keep at least this many experts, or all that they have

    def __post_init__(self) -> None:
        if self.multiple_of < 1:
            raise PlanError(f"Multiples of {self.multiple_of} cannot be kept; give 1 or more.")
        if self.floor < 0:
            raise PlanError(f"The floor {self.floor} is below 0; give 0 or more.")
        for layer, experts in self.pinned.items():
            if both := sorted(experts & self.dropped.get(layer, frozenset())):
                raise PlanError(f"Expert {both[0]} of layer {layer} is both pinned and dropped.")

    @property
    def held(self) -> frozenset[int]:
        """Layers that are not left to the schedule alone."""
        return self.protected.union(self.pinned, self.dropped, self.fixed)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON; empty without constraints."""
        usual = Constraints()
        return {
            each.name: _plain(getattr(self, each.name))
            for each in fields(self)
            if getattr(self, each.name) != getattr(usual, each.name)
        }


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(layer): _plain(value[layer]) for layer in sorted(value)}
    return sorted(value) if isinstance(value, frozenset) else value


@dataclass(frozen=True, slots=True)
class Room:
    """How many experts a layer can lose: least, least + step, ..., most."""

    size: int  # experts of the layer
    least: int  # removed at least
    most: int  # removed at most
    step: int = 1  # between possible numbers
    groups: int = 1  # groups of neighbouring experts that each lose the same number
    pinned: frozenset[int] = frozenset()  # experts that stay
    dropped: frozenset[int] = frozenset()  # experts that go first

    def allows(self, removed: int) -> bool:
        """Whether exactly this many can go."""
        return self.least <= removed <= self.most and (removed - self.least) % self.step == 0

    def rounded_down(self, removed: int) -> int:
        """The nearest number at or below that can go; out of bounds as it is."""
        within = self.least <= removed <= self.most
        return removed - (removed - self.least) % self.step if within else removed

    def nearest(self, removed: int) -> int:
        """The nearest number that can go; of a tie the smaller, which keeps more."""
        within = min(max(removed, self.least), self.most)
        below = within - (within - self.least) % self.step
        above = below + self.step
        return above if above <= self.most and above - within < within - below else below


def sum_of(rooms: Sequence[Room]) -> Room:
    """What all of them together can lose: they have one step."""
    size, least, most = map(sum, zip(*((r.size, r.least, r.most) for r in rooms), strict=True))
    return Room(size, least, most, rooms[0].step)


def rooms_of(layers: Sequence[MoELayer], constraints: Constraints) -> tuple[Room, ...]:
    """The room that its router and the constraints leave each layer."""
    check_names(layers, constraints)
    # One step for all, so that layers can trade.
    step = math.lcm(constraints.multiple_of, *(layer.num_groups for layer in layers))
    return tuple(_room(layer, constraints, step) for layer in layers)


def check_multiple(layers: Sequence[MoELayer], constraints: Constraints) -> None:
    """Refuse a floor or a multiple that no layer can keep, and name what works."""

    def lets_go(number: int) -> bool:
        steps = [math.lcm(number, layer.num_groups) for layer in layers]
        pairs = zip(layers, steps, strict=True)
        return any(-(-layer.least_kept // step) * step < layer.num_experts for layer, step in pairs)

    multiple, most = constraints.multiple_of, max(layer.num_experts for layer in layers)
    if constraints.floor > most:
        raise PlanError(
            f"The floor {constraints.floor} exceeds the {most} experts that a layer has at most; "
            f"give less than {most}."
        )
    if multiple == 1 or lets_go(multiple):
        return
    works = [number for number in range(2, multiple) if most % number == 0 and lets_go(number)]
    hint = f"give --multiple-of {works[-1]}" if works else "leave it out"
    raise PlanError(
        f"--multiple-of {multiple} lets no expert go: layers have at most {most} experts; {hint}."
    )


def open_rooms(layers: Sequence[MoELayer]) -> tuple[Room, ...]:
    """Rooms without bounds, in which a schedule can remove any number."""
    return tuple(Room(layer.num_experts, 0, layer.num_experts) for layer in layers)


def _room(layer: MoELayer, constraints: Constraints, step: int) -> Room:
    index, count = layer.index, layer.num_experts
    pinned = constraints.pinned.get(index, frozenset())
    dropped = constraints.dropped.get(index, frozenset())
    keep = constraints.fixed.get(index)
    if index in constraints.protected:
        if dropped:
            raise PlanError(
                f"Layer {index} is protected, so its expert {min(dropped)} cannot be dropped; "
                "leave one of the two out."
            )
        if keep not in (None, count):
            raise PlanError(
                f"Layer {index} is protected, so it keeps {count} experts and not {keep}; leave "
                "one of the two out."
            )
        low = high = count
    else:
        low, high = _kept_range(layer, pinned, dropped, constraints.floor)
        low, high = _multiples(layer, (low, high), step)
        possible = range(low, high + 1, step)
        if keep is not None and keep not in possible:
            below = [number for number in possible if number < keep][-1:]
            above = [number for number in possible if number > keep][:1]
            raise PlanError(
                f"Layer {index} cannot keep {keep} of {count} experts here; nearest: "
                f"{' or '.join(map(str, below + above))}."
            )
        if keep is not None:
            low = high = keep
    return Room(count, count - high, count - low, step, layer.num_groups, pinned, dropped)


def _kept_range(
    layer: MoELayer, pinned: Collection[int], dropped: Collection[int], floor: int
) -> tuple[int, int]:
    """Fewest and most experts that can be kept; all groups keep the same number."""
    groups, size = layer.num_groups, layer.num_experts // layer.num_groups
    most_pinned = max(sum(e // size == group for e in pinned) for group in range(groups))
    most_dropped = max(sum(e // size == group for e in dropped) for group in range(groups))
    low = max(layer.least_kept, groups * most_pinned, min(floor, layer.num_experts))
    high = groups * (size - most_dropped)
    if low > high:
        each = f" in each of its {groups} groups" if groups > 1 else ""
        raise PlanError(
            f"Layer {layer.index} must keep at least {low} of {layer.num_experts} experts, but "
            f"with the dropped ones at most {high} can stay; drop at most "
            f"{(layer.num_experts - low) // groups}{each}."
        )
    return low, high


def _multiples(layer: MoELayer, kept: tuple[int, int], step: int) -> tuple[int, int]:
    """The smallest and largest multiple of `step` in a range of kept experts."""
    low, high = -(-kept[0] // step) * step, kept[1] // step * step
    if low <= high:
        return low, high
    works = max(
        number
        for number in range(1, step)
        if number % layer.num_groups == 0 and -(-kept[0] // number) * number <= kept[1]
    )
    raise PlanError(
        f"Layer {layer.index} can keep from {kept[0]} to {kept[1]} experts, and none of these is a "
        f"multiple of {step}; the nearest that works is a multiple of {works}."
    )


def check_names(layers: Sequence[MoELayer], constraints: Constraints) -> None:
    """Refuse constraints that name layers or experts that do not exist."""
    counts = {layer.index: layer.num_experts for layer in layers}
    for index in sorted(constraints.held | constraints.locked):
        if index not in counts:
            raise PlanError(
                f"The constraints name layer {index}, which has no routed experts; the sparse "
                f"layers are {ranges(counts)}."
            )
        ids = [*constraints.pinned.get(index, ()), *constraints.dropped.get(index, ())]
        if ids and max(ids) >= counts[index]:
            raise PlanError(
                f"The constraints name expert {max(ids)} of layer {index}, which has "
                f"{counts[index]} experts (0..{counts[index] - 1})."
            )


def check_total(total: int, rooms: Sequence[Room], what: str = "experts") -> None:
    """Refuse a total that the layers cannot lose; rooms have one step for all."""
    least, most = sum(room.least for room in rooms), sum(room.most for room in rooms)
    step, size = rooms[0].step, sum(room.size for room in rooms)
    if least <= total <= most and (total - least) % step == 0:
        return
    if total > most:
        why = f"at most {_askable(most, rooms)} can go"
        why += "" if most else ", since limits, such as --protect, keep all of them"
    elif total < least:
        why = f"at least {_askable(least, rooms)} must go"
    else:
        below = total - (total - least) % step
        near = " or ".join(_askable(number, rooms) for number in (below, below + step))
        why = f"they go {step} at a time here; nearest: {near}"
    amount = f"{total} ({as_percent(total, size)}) of {size} {what}"
    raise PlanError(f"The budget removes {amount}, but {why}.")


def _askable(number: int, rooms: Sequence[Room]) -> str:
    """A number, and the sparsity that removes as many; if none does, the option that does.

    A sparsity is rounded down per layer: 33.34% of three layers of 8 is 2 each, not 8. A
    uniform schedule refuses a sparsity if some layer cannot lose its share.
    """
    size = sum(room.size for room in rooms)
    percent = as_percent(number, size)
    if number < size:
        rho = parse_sparsity(percent)
        shares = [num_removed(room.size, rho) for room in rooms]
        fits = all(room.allows(share) for room, share in zip(rooms, shares, strict=True))
        if fits and sum(shares) == number:
            return f"{number} ({percent})"
    return f"{number} (--remove {number})"


def order_within(
    order: Sequence[int], pinned: Collection[int], dropped: Collection[int]
) -> list[int]:
    """Experts from first to last to keep: the pinned, then by `order`, then the dropped."""
    return sorted(order, key=lambda expert: (expert in dropped, expert not in pinned))


def ranges(numbers: Iterable[int]) -> str:
    """Integers as the command line takes them, see `parse_numbers`: 0,5-7."""
    runs = groupby(enumerate(sorted(numbers)), key=lambda pair: pair[1] - pair[0])
    groups = [[number for _, number in run] for _, run in runs]
    return ",".join(f"{each[0]}-{each[-1]}" if len(each) > 1 else str(each[0]) for each in groups)


def parse_numbers(text: str, *, what: str) -> frozenset[int]:
    """Integers from text such as "0,5-7", see `ranges`."""
    if not (text.isascii() and _LAYERS.fullmatch(text.strip())):
        raise PlanError(f"{text!r} names no {what}; write numbers and ranges such as 0,5-7.")
    numbers: set[int] = set()
    for part in text.strip().split(","):
        first, _, last = part.partition("-")
        if max(len(first), len(last)) > MOST_DIGITS:
            raise PlanError(f"{part!r} in {text!r} is larger than the number of {what} can be.")
        if int(last or first) < int(first):
            raise PlanError(
                f"{part!r} in {text!r} is no range of {what}; write the smaller number first."
            )
        numbers.update(range(int(first), int(last or first) + 1))
    return frozenset(numbers)


def parse_experts(texts: Iterable[str]) -> dict[int, frozenset[int]]:
    """Experts by layer from texts such as "3:5,7-9"."""
    by_layer: dict[int, frozenset[int]] = {}
    for text in map(str, texts):  # in YAML one may be a number
        layers, colon, experts = text.partition(":")
        if not colon:
            raise PlanError(f"{text!r} names no experts; write LAYER:EXPERTS, such as 3:5,7-9.")
        ids = parse_numbers(experts, what="experts")
        for layer in parse_numbers(layers, what="layers"):
            by_layer[layer] = by_layer.get(layer, frozenset()) | ids
    return by_layer


def parse_counts(texts: Iterable[str]) -> dict[int, int]:
    """Kept experts by layer from texts such as "3=20" or "0-2=24"."""
    counts: dict[int, int] = {}
    for text in map(str, texts):
        layers, equals, count = text.partition("=")
        number = count.strip()
        if not equals or not (number.isascii() and number.isdigit()) or len(number) > MOST_DIGITS:
            raise PlanError(f"{text!r} sets no layer; write LAYER=KEPT, such as 3=20.")
        for layer in parse_numbers(layers, what="layers"):
            if layer in counts:
                raise PlanError(f"Layer {layer} is set twice.")
            counts[layer] = int(number)
    return counts
