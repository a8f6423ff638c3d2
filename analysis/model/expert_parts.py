"""Experts that lack a part which others of their layer have, such as a scale of quantised weights.

A tool that quantises by what it measured leaves out what no token reached: NVFP4 models without
`input_scale` for some experts make engines compute NaN as soon as a token reaches one of them.
"""

from collections import defaultdict
from dataclasses import dataclass
from functools import lru_cache

from analysis.families.base import SlotKind
from analysis.model.moe_model import MoEModel, is_expert_weight


@dataclass(frozen=True, slots=True)
class Lack:
    """A part of a projection that some experts of a layer lack."""

    layer: int
    projection: str  # its name in the checkpoint, such as down_proj
    part: str  # weight_scale, input_scale, bias, ...
    experts: tuple[int, ...]  # that lack it, ascending
    others: int  # experts that have it


@lru_cache(maxsize=4)
def lacking_parts(model: MoEModel) -> tuple[Lack, ...]:
    """What experts lack that others with weights of the same type have, by layer and projection.

    Experts whose weights are stored in another type, as those left out of a quantisation, are
    compared among themselves.
    """
    lacks = []
    for layer in model.layers:
        parts: defaultdict[tuple[str, int], set[str]] = defaultdict(set)
        stored: dict[tuple[str, int], tuple[str, str]] = {}
        for item in model.located[layer.index]:
            slot = item.slot
            if slot.kind is SlotKind.EXPERT and slot.expert is not None:
                parts[slot.projection, slot.expert].add(slot.role)
                if is_expert_weight(slot):
                    stored[slot.projection, slot.expert] = (slot.role, item.entry.dtype)
        alike: defaultdict[tuple[str, tuple[str, str]], list[int]] = defaultdict(list)
        for (projection, expert), kind in stored.items():
            alike[projection, kind].append(expert)
        for (projection, _), experts in alike.items():
            all_parts = sorted(set().union(*(parts[projection, expert] for expert in experts)))
            for part in all_parts:
                lacking = sorted(
                    expert for expert in experts if part not in parts[projection, expert]
                )
                if lacking:
                    name = model.family.projections[projection]
                    others = len(experts) - len(lacking)
                    lacks.append(Lack(layer.index, name, part, tuple(lacking), others))
    return tuple(lacks)
