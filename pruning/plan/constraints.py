"""What a plan must respect besides its budget, and what that leaves each layer and expert."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Annotated, Any, Final

from pydantic import BaseModel, BeforeValidator, Field

from analysis.errors import PlanError
from pruning.option import Option, checked, checked_by
from pruning.plan.layer_words import (
    MOST_DIGITS,
    counts_words,
    experts_words,
    layers_words,
    parse_counts,
    parse_experts,
    parse_numbers,
    ranges,
)

if TYPE_CHECKING:
    from analysis.families.base import MoELayer

ExpertSets = Mapping[int, frozenset[int]]
# Limit -> field of `Constraints`, where its name is another.
_NAMES: Final = {"protect": "protected", "pin": "pinned", "drop": "dropped", "set": "fixed"}


@dataclass(frozen=True, slots=True)
class Parallel:
    """Over how many processes an engine spreads a model."""

    tp: int = 1  # tensor parallel: heads and widths are divided
    ep: int = 1  # expert parallel: experts are divided

    @property
    def slices(self) -> int:
        """Into how many slices the width of a routed expert is cut."""
        return max(1, self.tp // self.ep)

    def __str__(self) -> str:
        return f"tp={self.tp},ep={self.ep}"


def parse_parallel(text: str) -> Parallel:
    """Processes from text such as "tp=8,ep=8"; either may be left out."""
    sizes: dict[str, int] = {}
    for part in text.split(","):
        name, equals, number = (word.strip() for word in part.partition("="))
        is_count = number.isascii() and number.isdigit() and len(number) <= MOST_DIGITS
        if name not in ("tp", "ep") or not equals or not is_count or not int(number):
            raise PlanError(f"{part.strip()!r} is no number of processes; write tp=8,ep=8.")
        if name in sizes:
            raise PlanError(f"{text!r} gives {name} twice.")
        sizes[name] = int(number)
    return Parallel(**sizes)


def _layers(value: Any) -> Any:
    """Numbers in order, from these or from texts such as "0,5-7"."""
    parts = (value,) if isinstance(value, str | int) else value
    if not isinstance(parts, Iterable) or isinstance(parts, Mapping):
        return value
    numbers: list[Any] = []
    for part in parts:
        numbers += parse_numbers(part, what="layers") if isinstance(part, str) else [part]
    try:
        return tuple(sorted(set(numbers)))
    except TypeError:
        return tuple(numbers)  # refused by its type


def _experts(value: Any) -> Any:
    """Layer -> its experts, from these or from texts such as "3:5,7-9"."""
    if isinstance(value, Mapping) or not isinstance(value, Iterable):
        return value
    return dict(parse_experts((value,) if isinstance(value, str) else value))


def _counts(value: Any) -> Any:
    """Layer -> experts that it keeps, from these or from texts such as "0-2=24"."""
    if isinstance(value, Mapping) or not isinstance(value, Iterable):
        return value
    return parse_counts((value,) if isinstance(value, str) else value)


Number = Annotated[int, Field(strict=True, ge=0, le=10**6)]
Index = Annotated[int, Field(ge=0, le=10**6)]  # JSON has no numbers as keys
Layers = Annotated[tuple[Number, ...], BeforeValidator(checked(_layers))]
Experts = Annotated[dict[Index, Layers], BeforeValidator(checked(_experts))]


class Limits(BaseModel):
    """What a plan must respect besides its budget, as a person asks for it.

    Of neurons, multiple and floor apply to each expert.
    """

    multiple_of: Annotated[
        int,
        Field(strict=True, ge=1, le=4096),
        Option(
            "Layers keep a multiple of this many; a sparsity is rounded down to fit.",
            takes="N",
            heading="Constraints",
        ),
    ] = 1
    serve_on: (
        Annotated[
            str,
            Field(min_length=1, max_length=4096),
            checked_by(parse_parallel),
            Option(
                "Processes that will serve it: tp=8,ep=8. Layers keep a multiple of ep experts, "
                "neurons a multiple that tp divides; heads that do not divide are refused.",
                takes="tp=N,ep=N",
                heading="Constraints",
            ),
        ]
        | None
    ) = None
    floor: Annotated[
        int,
        Field(strict=True, ge=0, le=10**6),
        Option("Layers keep at least this many.", takes="N", heading="Constraints"),
    ] = 0
    protect: Annotated[
        Layers,
        Option(
            "Layers that lose nothing: 0,5-7; repeatable.",
            takes="LAYERS",
            words=layers_words,
            heading="Constraints",
        ),
    ] = ()
    pin: Annotated[
        Experts,
        Option(
            "Experts that stay: 3:5,7-9; repeatable.",
            takes="LAYERS:EXPERTS",
            words=experts_words,
            heading="Constraints",
        ),
    ] = Field(default_factory=dict)
    drop: Annotated[
        Experts,
        Option(
            "Experts that go: 3:5,7-9; repeatable.",
            takes="LAYERS:EXPERTS",
            words=experts_words,
            heading="Constraints",
        ),
    ] = Field(default_factory=dict)
    keep_super: Annotated[
        bool,
        Field(strict=True),
        Option(
            "Keep the super experts: those with outlying largest outputs in the calibration "
            "(arXiv:2507.23279).",
            heading="Constraints",
        ),
    ] = False
    set: Annotated[
        dict[Index, Number],
        BeforeValidator(checked(_counts)),
        Option(
            "Layers that keep a number of experts: 0-2=24; repeatable.",
            ("--set", "--layer-set"),
            takes="LAYERS=N",
            words=counts_words,
            of="expert",
            heading="Constraints",
        ),
    ] = Field(default_factory=dict)

    def constraints(self, lock: Iterable[int] = ()) -> Constraints:
        """The same for schedules; `lock` names layers that keep what they had before `set`."""
        values: dict[str, Any] = {"locked": frozenset(lock)}
        for name in _SETTLED.keys() & self.model_fields_set:
            values[_SETTLED[name]] = _frozen(getattr(self, name))
        return Constraints(**values)


def _frozen(value: Any) -> Any:
    """A value of a limit with its tuples as sets."""
    if isinstance(value, Mapping):
        return {key: _frozen(item) for key, item in value.items()}
    return frozenset(value) if isinstance(value, tuple) else value


@dataclass(frozen=True)
class Constraints:
    """The limits as schedules read them; layers are decoder indices.

    In a plan of neurons, `multiple_of` and `floor` count the neurons that each expert keeps, a
    pinned expert loses none, and a dropped one goes as a whole, with its row of the router.
    """

    multiple_of: int = 1  # layers keep a multiple of this many experts; protected ones are exempt
    protected: frozenset[int] = frozenset()  # layers that lose nothing
    # Layer -> experts that are never removed.
    pinned: ExpertSets = field(default_factory=dict, hash=False)
    # Layer -> experts that are always removed.
    dropped: ExpertSets = field(default_factory=dict, hash=False)
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
        check_apart(self.pinned, self.dropped)

    @property
    def held(self) -> frozenset[int]:
        """Layers that are not left to the schedule alone."""
        return self.protected.union(self.pinned, self.dropped, self.fixed)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON; empty without constraints."""
        usual = Constraints()
        return {
            field.name: _plain(getattr(self, field.name))
            for field in fields(self)
            if getattr(self, field.name) != getattr(usual, field.name)
        }


def check_apart(
    pinned: Mapping[int, Iterable[int]], dropped: Mapping[int, Collection[int]]
) -> None:
    """Refuse an expert that is to stay and to go."""
    for layer, experts in pinned.items():
        if both := sorted(set(experts).intersection(dropped.get(layer, ()))):
            raise PlanError(f"Expert {both[0]} of layer {layer} is both pinned and dropped.")


# Limit -> field of `Constraints`; the other limits become some of these, see `PlanSpec`.
_SETTLED: Final = {
    name: _NAMES.get(name, name)
    for name in Limits.model_fields
    if _NAMES.get(name, name) in {field.name for field in fields(Constraints)}
}


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(layer): _plain(value[layer]) for layer in sorted(value)}
    return sorted(value) if isinstance(value, frozenset) else value


def check_multiple(
    layers: Sequence[MoELayer], constraints: Constraints, serve_on: Parallel | None = None
) -> None:
    """Refuse a floor or a multiple that no layer can keep, and name what works.

    `serve_on`: the processes that ask for the multiple, alone or with one of a person's.
    """

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
    asked, option = f"--multiple-of {multiple}", "--multiple-of "
    if serve_on is not None:
        asked, option = f"--serve-on {serve_on}", "ep="
    hint = f"give {option}{works[-1]}" if works else "leave it out"
    if serve_on is not None and multiple != serve_on.ep:
        asked, hint = f"{asked} with --multiple-of, {multiple} together,", "leave one of them out"
    raise PlanError(f"{asked} lets no expert go: layers have at most {most} experts; {hint}.")


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


def kept_bounds(layer: MoELayer, constraints: Constraints, step: int) -> tuple[int, int]:
    """Fewest and most experts that a layer can keep."""
    index, count = layer.index, layer.num_experts
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
        return count, count
    pinned = constraints.pinned.get(index, frozenset())
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
    return (low, high) if keep is None else (keep, keep)


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
        where = f" in each of its {groups} groups" if groups > 1 else ""
        raise PlanError(
            f"Layer {layer.index} must keep at least {low} of {layer.num_experts} experts, but "
            f"with the dropped ones at most {high} can stay; drop at most "
            f"{(layer.num_experts - low) // groups}{where}."
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


def kept_widths(key: tuple[int, int], width: int, limits: Constraints) -> tuple[int, int]:
    """Fewest and most neurons that an expert can keep."""
    (layer, expert), step = key, limits.multiple_of
    floor, what = min(limits.floor, width), f"Expert {expert} of layer {layer}"
    low, high = -(-floor // step) * step, width // step * step
    if expert in limits.dropped.get(layer, ()):
        return 0, 0
    if layer in limits.protected or expert in limits.pinned.get(layer, ()):
        return width, width
    if 0 < width < step:
        raise PlanError(
            f"{what} has {width} neurons and cannot keep a multiple of {step}; the largest "
            f"multiple that works is {width}."
        )
    if low > high:
        raise PlanError(
            f"{what} has {width} neurons, so it cannot keep {floor} or more in multiples of "
            f"{step}; the largest floor that works is {high}."
        )
    return low, high
