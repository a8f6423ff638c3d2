"""What an export of a layout must hold, by names alone: knows nothing of the program's families."""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from layouts.hollow_models import BYTES, Header
from layouts.published import Layout

_EXPERT = re.compile(r"(.+\.experts\.)(\d+)(\..+)")
# What has an entry for each expert, in a layer that has some.
_ROUTED = re.compile(
    r".+\.(?:experts\.|router\.|gate\.|moe_statics\.|(?:in|out)put_linear\.|expert_bias$"
    r"|e_score_correction_bias$).*|.+\.(?:expert_bias|e_score_correction_bias)"
)
_OTHER_TRUNK = "talker."  # its layers have experts of their own
_LAYER = re.compile(r".*?layers\.(\d+)\.")
_HEADS = {"": r"(?!)", "counted": r"(?!)", "mtp": r"mtp\.", "beyond": r"model\.layers\.{depth}\."}


@dataclass(frozen=True)
class Wanted:
    """A tensor of the export."""

    source: str  # name of the tensor that it comes from
    dtype: str
    shape: tuple[int, ...]
    rows: tuple[int, ...] = ()  # entries of the source that it consists of; empty for all
    axis: int = 0  # along which they lie

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * BYTES[self.dtype]


def wanted_of(
    layout: Layout, header: Header, kept: Mapping[int, tuple[int, ...]], *, heads: bool = False
) -> dict[str, Wanted]:
    """Name -> tensor of an export; `heads` says whether prediction heads stay, cut like a layer.

    Kept ids are those of a layer's index in its names; heads under `mtp` are layer 0 of their own.
    """
    depth = layout.text["num_hidden_layers"]
    of_heads = re.compile(_HEADS[layout.heads].replace("{depth}", str(depth)))
    places = {index: {old: new for new, old in enumerate(ids)} for index, ids in kept.items()}
    wanted = {}
    for name, (dtype, shape) in header.items():
        is_head = bool(of_heads.match(name))
        if is_head and not heads:
            continue
        layer = _LAYER.match(name)
        index = int(layer[1]) if layer else -1
        index = -1 if is_head else index
        ids = kept.get(index, ())
        if not ids or "shared_" in name or name.startswith(_OTHER_TRUNK):
            wanted[name] = Wanted(name, dtype, shape)
        elif own := _EXPERT.fullmatch(name):
            if (place := places[index].get(int(own[2]))) is not None:
                wanted[f"{own[1]}{place}{own[3]}"] = Wanted(name, dtype, shape)
        # Gemma 4's router has a scale of the hidden size besides.
        elif layout.experts not in shape or not _ROUTED.fullmatch(name):
            wanted[name] = Wanted(name, dtype, shape)
        else:
            axis = shape.index(layout.experts)
            cut = (*shape[:axis], len(ids), *shape[axis + 1 :])
            wanted[name] = Wanted(name, dtype, cut, ids, axis)
    return wanted


def half_of(layout: Layout) -> tuple[int, ...]:
    """Half of the experts: every second one, the same number in each group; at least top-k."""
    found = range(1, layout.experts, 2)
    return tuple(found) if len(found) >= layout.top_k else tuple(range(1, layout.top_k + 1))


COUNTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
_HEAD_KEYS = ("num_nextn_predict_layers", "mtp_num_hidden_layers")
# Given to all: the balancing loss is meant for the full set of experts.
_ADDED = {"output_router_logits": False}


def _of_first(value: Any, count: int) -> Any:
    """Lists of modules without experts from this number on: where all are listed, the rest."""
    if isinstance(value, list):
        numbers = (re.match(r"mlp\.experts\.(\d+)\.", str(module)) for module in value)
        stays = [not number or int(number[1]) < count for number in numbers]
        return [_of_first(module, count) for module, stay in zip(value, stays, strict=True) if stay]
    return value


def with_count(config: dict[str, Any], before: int, after: int) -> dict[str, Any]:
    """A configuration whose every number of experts is another, and that has no heads."""
    made: dict[str, Any] = {}
    for key, value in config.items():
        if isinstance(value, dict):
            is_other = key.startswith(_OTHER_TRUNK.rstrip("."))
            made[key] = value if is_other else with_count(value, before, after)
        elif isinstance(value, list):
            made[key] = _of_first(value, after)
        elif key in COUNTS and value == before:
            made[key] = after
        else:
            made[key] = 0 if key in _HEAD_KEYS else value
    return made


def without_added(config: dict[str, Any], source: dict[str, Any], count: int) -> dict[str, Any]:
    """A configuration of an export less what it may say besides its source: counts, no loss."""
    allowed = _ADDED | dict.fromkeys(COUNTS, count)
    made: dict[str, Any] = {}
    for key, value in config.items():
        inner = source.get(key)
        if isinstance(value, dict) and isinstance(inner, dict):
            made[key] = without_added(value, inner, count)
        elif key in source or key not in allowed or value != allowed[key]:
            made[key] = value
    return made
