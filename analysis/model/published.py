"""Tensors of a trunk as published checkpoints hold them: FP8 in blocks, MXFP4, prediction heads."""

import re
from collections.abc import Iterator
from typing import Any

from analysis.errors import CheckpointError
from analysis.families.base import HEAD_KEYS, SlotKind, any_of
from analysis.families.rules import whole_number
from analysis.model.heads import is_tower
from analysis.model.moe_model import EMBEDDING, MoEModel
from analysis.model.outline import Shapes

_FLOATS = frozenset(("BF16", "F16", "F32"))
# Matrices of a layer that FP8 checkpoints keep as they are: parts of prediction heads and of
# DeepSeek-V3.2's indexer.
_PLAIN = re.compile(r".+\.(embed_tokens|eh_proj|shared_head\.head|indexer\.weights_proj)\.weight")
_MOST_HEADS = 16
_MEDIA = ("vision_config", "audio_config")
_MXFP4_BLOCK = 32  # weights that share a scale; two in a byte, also of DeepSeek-V4's experts


def as_published(tensors: Shapes, model: MoEModel) -> tuple[Shapes, tuple[str, ...]]:
    """Tensors of a trunk as a checkpoint of this configuration holds them, and caveats.

    `model` need not have tensors: its configuration and family are read.
    """
    caveats = []
    key = next((key for key in HEAD_KEYS if model.config.get(key)), "")
    if key and key == model.family.appended_heads_key and EMBEDDING in tensors:
        tensors = {
            **tensors,
            **dict(_head_tensors(tensors, model, whole_number(model.config, key))),
        }
        caveats.append(
            f"Prediction heads are counted as published ({key} = {model.config[key]}); a "
            "checkpoint that transformers saved has none."
        )
    elif key:
        caveats.append(f"Prediction heads ({key} = {model.config[key]}) are not counted.")
    elif model.family.has_uncounted_head:
        caveats.append(
            f"Published {model.family.label} models have a prediction head that config.json does "
            "not name; it is not counted."
        )
    if method := model.quantisation:
        ways = {"fp8": _in_fp8, "mxfp4": _in_mxfp4}
        stored = ways[method](tensors, model) if method in ways else None
        if stored is None:
            caveats.append(
                f"Bytes are counted as if the model were not quantised: config.json says {method}, "
                "but not how each tensor is stored."
            )
        tensors = stored or tensors
    media = [key for key in _MEDIA if model.checkpoint.config.get(key)]
    if media and not any(map(is_tower, tensors)):
        caveats.append(f"Parts for other media ({', '.join(media)}) are not counted.")
    return tensors, tuple(caveats)


def _head_tensors(
    tensors: Shapes, model: MoEModel, count: int
) -> Iterator[tuple[str, tuple[str, tuple[int, ...]]]]:
    """Heads as DeepSeek-V3 has them: layers like the last, each with an embedding and a head."""
    if count > _MOST_HEADS:
        raise CheckpointError(
            f"config.json gives {model.family.appended_heads_key} = {count}; no model has more "
            f"than {_MOST_HEADS} prediction heads."
        )
    trunk, dtype = model.family.trunks[0], tensors[EMBEDDING][0]
    last, hidden = f"{trunk}.{model.depth - 1}.", model.hidden_size
    vocabulary = tensors[EMBEDDING][1]
    for layer in range(model.depth, model.depth + count):
        start = f"{trunk}.{layer}."
        for name, tensor in tensors.items():
            if name.startswith(last):
                yield start + name.removeprefix(last), tensor
        for name in ("enorm", "hnorm", "shared_head.norm"):
            yield f"{start}{name}.weight", (dtype, (hidden,))
        yield f"{start}eh_proj.weight", (dtype, (hidden, 2 * hidden))
        for name in ("embed_tokens", "shared_head.head"):
            yield f"{start}{name}.weight", (dtype, vocabulary)


def _in_fp8(tensors: Shapes, model: MoEModel) -> Shapes | None:
    """The matrices of all layers in FP8, with a scale per block; None if blocks are not known."""
    settings = model.quantisation_settings
    block = settings.get("weight_block_size")
    if not (isinstance(block, list) and len(block) == 2 and all(type(n) is int for n in block)):
        return None
    if min(block) < 1 or any(
        len(shape) > 2 and model.family.locate(n) for n, (_, shape) in tensors.items()
    ):
        return None  # FP8 of stacked experts has no common layout
    layers = re.compile(rf"(?:{any_of(model.family.trunks)})\.\d+\..+\.weight")
    unconverted = _UnconvertedModules(settings.get("modules_to_not_convert"))
    stored: dict[str, tuple[str, tuple[int, ...]]] = {}
    for name, (dtype, shape) in tensors.items():
        slot = model.family.locate(name)
        is_router = slot is not None and slot.kind is SlotKind.ROUTER
        is_matrix = len(shape) == 2 and dtype in _FLOATS and layers.fullmatch(name)
        if not is_matrix or is_router or _PLAIN.fullmatch(name) or unconverted.names(name):
            stored[name] = (dtype, shape)
            continue
        if slot is not None and model.has_fp4:
            stored[name] = ("I8", (shape[0], shape[1] // 2))
            scales = (shape[0], -(-shape[1] // _MXFP4_BLOCK))
            stored[name.removesuffix("weight") + "scale"] = ("F8_E8M0", scales)
            continue
        scales = tuple(-(-size // side) for size, side in zip(shape, block, strict=True))
        scale_dtype = "F8_E8M0" if model.has_fp4 else "F32"
        stored |= {name: ("F8_E4M3", shape), f"{name}_scale_inv": (scale_dtype, scales)}
    return stored


class _UnconvertedModules:
    """Modules that a configuration leaves unquantised: whole paths, beginnings or ends of them."""

    def __init__(self, names: Any) -> None:
        self._names = frozenset(filter(None, map(str, names if isinstance(names, list) else ())))

    def names(self, tensor: str) -> bool:
        """Whether the module of a tensor is among them."""
        if not self._names:
            return False
        words = tensor.removesuffix(".weight").split(".")
        parts = range(1, len(words) + 1)
        starts = (".".join(words[:end]) for end in parts)
        ends = (".".join(words[-size:]) for size in parts)
        return not self._names.isdisjoint((*starts, *ends))


def _in_mxfp4(tensors: Shapes, model: MoEModel) -> Shapes | None:
    """Stacked, transposed experts in blocks of 32 weights of half a byte, with a scale each."""
    stored: dict[str, tuple[str, tuple[int, ...]]] = {}
    for name, (dtype, shape) in tensors.items():
        slot = model.family.locate(name)
        if slot is None or slot.kind is SlotKind.ROUTER or slot.role != "weight":
            stored[name] = (dtype, shape)
            continue
        if not model.family.is_transposed or len(shape) != 3 or shape[1] % _MXFP4_BLOCK:
            return None
        experts, width, rows = shape
        scales = (experts, rows, width // _MXFP4_BLOCK)
        stored[f"{name}_blocks"] = ("U8", (*scales, _MXFP4_BLOCK // 2))
        stored[f"{name}_scales"] = ("U8", scales)
    return stored
