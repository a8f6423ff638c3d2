"""Layers, experts and counts as a person writes them: 0,5-7 and 3:5,7-9 and 0-2=24."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING

from analysis.errors import PlanError

if TYPE_CHECKING:
    from analysis.families.base import MoELayer

MOST_DIGITS = 6  # of a layer, an expert or a count
_LAYERS = re.compile(r"\d+(-\d+)?(,\d+(-\d+)?)*")


def ranges(numbers: Iterable[int]) -> str:
    """Integers as the command line takes them, see `parse_numbers`: 0,5-7."""
    runs = groupby(enumerate(sorted(numbers)), key=lambda pair: pair[1] - pair[0])
    groups = [[number for _, number in run] for _, run in runs]
    return ",".join(
        f"{group[0]}-{group[-1]}" if len(group) > 1 else str(group[0]) for group in groups
    )


def parse_numbers(text: str, *, what: str) -> frozenset[int]:
    """Integers from text such as "0,5-7", see `ranges`."""
    if not (text.isascii() and _LAYERS.fullmatch(text.strip())):
        raise PlanError(f"{text!r} names no {what}; write numbers and ranges such as 0,5-7.")
    numbers: set[int] = set()
    for part in text.strip().split(","):
        first, _, last = part.partition("-")
        if max(len(first), len(last)) > MOST_DIGITS:
            where = "" if part == text else f" in {text!r}"
            raise PlanError(f"{part!r}{where} is larger than the number of {what} can be.")
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


def layers_words(layers: Iterable[int]) -> list[str]:
    """Layers as the command line takes them: 0,5-7."""
    return [ranges(layers)] if layers else []


def experts_words(experts: Mapping[int, Iterable[int]]) -> list[str]:
    """Experts as the command line takes them: LAYER:EXPERTS."""
    return [f"{layer}:{ranges(ids)}" for layer, ids in experts.items() if ids]


def counts_words(kept: Mapping[int, int]) -> list[str]:
    """Counts as the command line takes them, layers with equal counts together."""
    return [
        f"{ranges(layer for layer, number in kept.items() if number == count)}={count}"
        for count in sorted(set(kept.values()), reverse=True)
    ]


def experts_text(layers: Sequence[MoELayer]) -> str:
    """Experts per layer, such as 64; a range such as 8-64 if layers differ."""
    counts = [layer.num_experts for layer in layers]
    return "-".join(map(str, dict.fromkeys((min(counts), max(counts)))))
