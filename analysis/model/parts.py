"""How many weights are in memory together when a model runs one layer at a time. No torch."""

import re
from collections import Counter

from analysis.model.moe_model import MoEModel

_NUMBER = re.compile(r"\.(\d+)\.")


def weights_by_part(model: MoEModel) -> Counter[str]:
    """Part -> its weights: a layer by its number, every other tensor by its name."""
    parts: Counter[str] = Counter()
    for entry in model.checkpoint.tensors.values():
        parts[part_of(entry.name)] += model.num_weights(entry)
    return parts


def part_of(tensor: str) -> str:
    """The part of a tensor, see `weights_by_part`."""
    number = _NUMBER.search(tensor)
    return number[1] if number else tensor
