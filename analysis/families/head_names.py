"""Which tensors belong to prediction heads (MTP), by their names."""

import re
from collections.abc import Sequence
from functools import lru_cache

from analysis.families.base import any_of

_OWN_TRUNK = re.compile(r"((?:\w+\.)?mtp)(?:[._])")
# Parts of composite models that text tokens do not use.
_TOWER = re.compile(
    r"(?:.+\.)?(visual|vision_\w+|audio_\w+|image_\w+|embed_(vision|audio)|sam_model"
    r"|(multi_modal|mm)_projector|patch_merge_mlp|talker|code2wav)\."
)


def is_tower(tensor_name: str) -> bool:
    """Whether a tensor belongs to a part for other media than text."""
    return bool(_TOWER.match(tensor_name))


def head_of(tensor_name: str, trunks: Sequence[str], depth: int) -> tuple[str, str] | None:
    """The head that a tensor belongs to and the prefix of its layers; None outside of heads.

    `trunks` are the prefixes of the model's layers, `depth` is their number.
    """
    if prefix := _OWN_TRUNK.match(tensor_name):
        # Its layers are `mtp.layers.0`, or `mtp.0` as in DeepSeek-V4.
        is_layer = tensor_name[prefix.end() :].partition(".")[0].isdigit()
        return prefix[1], prefix[1] if is_layer else f"{prefix[1]}.layers"
    match = _layers_of(tuple(trunks)).match(tensor_name)
    if match and int(match[2]) >= depth:
        return match[1], match[1].rpartition(".")[0]
    return None


def trunk_layer(tensor_name: str, trunks: Sequence[str]) -> int | None:
    """The number of the layer that a tensor belongs to by its name; None outside of layers."""
    match = _layers_of(tuple(trunks)).match(tensor_name)
    return int(match[2]) if match else None


@lru_cache(maxsize=64)
def _layers_of(trunks: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile(rf"((?:{any_of(trunks)})\.(\d+))\.")
