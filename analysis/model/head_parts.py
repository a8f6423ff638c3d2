"""What a prediction head (MTP) computes, as its tensors tell: how it is entered, and its layers.

A head gets a hidden state of the trunk, after its last norm, and the embedding of the next token.
Each has a norm of its own; a projection of both, the embedding first, enters decoder layers like
those of the trunk. DeepSeek-V3's, GLM's and Hunyuan's tensors have one set of names (`enorm`,
`hnorm`, `eh_proj`), those of Qwen3-Next and EXAONE-MoE another. A second head gets what the first
one gives in place of the trunk's hidden state.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from analysis.checkpoint.index import TensorEntry
from analysis.errors import UnsupportedModelError
from analysis.families.base import MoELayer, any_of
from analysis.model.checking import check_layers
from analysis.model.heads import Head, LayerTensors, heads_in_order, layer_numbers, tensors_by_layer
from analysis.model.moe_model import MoEModel

_ENTRIES = {
    "embedding_norm": ("enorm", "pre_fc_norm_embedding"),
    "hidden_norm": ("hnorm", "pre_fc_norm_hidden"),
    "projection": ("eh_proj", "fc"),
}
# What comes after the layers, or repeats the trunk's embedding; the statistics do not need it.
_BEHIND = re.compile(r"(shared_head\.(norm|head)|final_layernorm|norm|embed_tokens)\.weight")
# Qwen3.5 stacks the experts of its trunk, not those of its head; loading stacks them all.
_EXPERTS = re.compile(r"(?:^|\.)experts\.")
_SCALE = re.compile(r"[._]scale(_inv)?$")
# A projection of one layer, after which further layers of the head follow.
_LAYERS_ENTRY = re.compile(rf"\.\d+\.(?:{any_of(_ENTRIES['projection'])})\.weight")
_PLAIN = ("BF16", "F16", "F32", "F64")


@dataclass(frozen=True, eq=False)
class HeadLayer:
    """A decoder layer of a head."""

    number: int  # in statistics: numbered on from the trunk's last layer
    like: int  # the trunk's layer that computes as this one does, with other weights
    tensors: tuple[TensorEntry, ...]  # named as those of that layer
    experts: MoELayer | None  # under its number; None for a dense layer


@dataclass(frozen=True, eq=False)
class HeadParts:
    """A head that can be run."""

    name: str
    embedding_norm: TensorEntry
    hidden_norm: TensorEntry
    projection: TensorEntry  # (width, 2 * width); its first columns take the embedding
    layers: tuple[HeadLayer, ...]


def runnable_heads(model: MoEModel) -> tuple[HeadParts, ...]:
    """The heads in the order in which they run, up to the last one with experts.

    Raises an UnsupportedModelError if there is none, or one cannot be run.
    """
    heads = heads_in_order(model)
    with_experts = [place for place, head in enumerate(heads) if head.has_experts]
    if not with_experts:
        raise UnsupportedModelError(
            f"{model.name} has no prediction head with experts; leave out the group heads."
        )
    if model.streams_size != model.hidden_size:
        raise _refusal(heads[0].name, "it gets several streams of hidden states")
    layers = tensors_by_layer(model.checkpoint.tensors, model.family.trunks, model)
    trunk = {layer: tensors for layer, tensors in layers.items() if layer < model.depth}
    numbers = layer_numbers(model)
    return tuple(_parts_of(model, head, numbers, trunk) for head in heads[: with_experts[-1] + 1])


def _refusal(head: str, reason: str) -> UnsupportedModelError:
    return UnsupportedModelError(
        f"The prediction head {head} cannot be run: {reason}. Leave out the group heads."
    )


def _parts_of(
    model: MoEModel,
    head: Head,
    numbers: Mapping[tuple[str, int], int],
    trunk: Mapping[int, LayerTensors],
) -> HeadParts:
    layer_tensors = tensors_by_layer(head.tensors, (head.trunk,), model)
    inside: set[str] = set()  # names of the tensors of its decoder layers
    layers = []
    for index, tensors in sorted(layer_tensors.items()):
        like = _like_layer(model, head, index, tensors, trunk)
        place, first = next(iter(trunk[like].items()))
        prefix = first.name.removesuffix(place)
        inner_names = [name for name in tensors if name in trunk[like] or _EXPERTS.search(name)]
        inside.update(tensors[name].name for name in inner_names)
        number = numbers[head.name, index]
        layers.append(
            HeadLayer(
                number,
                like,
                tuple(replace(tensors[name], name=f"{prefix}{name}") for name in inner_names),
                replace(model.layers[-1], index=number) if index in head.located else None,
            )
        )
    if len(layer_tensors) > 1 and not any(
        _LAYERS_ENTRY.fullmatch(name.removeprefix(head.trunk)) for name in head.tensors
    ):
        raise _refusal(head.name, "several layers share one projection")
    outer_entries = [model.checkpoint.tensors[name] for name in head.tensors if name not in inside]
    return HeadParts(head.name, **_entry_tensors(head, outer_entries), layers=tuple(layers))


def _like_layer(
    model: MoEModel,
    head: Head,
    index: int,
    tensors: LayerTensors,
    trunk: Mapping[int, LayerTensors],
) -> int:
    """The last layer of the trunk that computes as a head's layer: kind, names and shapes agree."""
    sparse = {layer.index for layer in model.layers}
    alike = [
        like
        for like in sorted(trunk)
        if (like in sparse) == (index in head.located)
        and all(
            name in tensors and tensors[name].shape == entry.shape
            for name, entry in trunk[like].items()
            if not _EXPERTS.search(name)
        )
    ]
    if index in head.located:
        check_layers(head.as_model(model))  # of the experts, which may be stacked in one of the two
    if not alike:
        raise _refusal(head.name, _why_unlike(model, index, tensors, trunk))
    sizes = {like: len(trunk[like]) for like in alike}
    most = max(sizes.values())  # of two, the one that leaves less unexplained
    alike = [like for like in alike if sizes[like] == most]
    kinds = dict(enumerate(model.config.get("layer_types") or ()))
    if len({kinds.get(like) for like in alike}) < 2:
        return alike[-1]
    # Attention that slides and attention that does not have the same tensors. A head's is that of
    # the trunk's layer of the same number where config.json does not say it, as vLLM reads EXAONE.
    of_heads = dict(enumerate(model.config.get("mtp_layer_types") or ())) or kinds
    matches = [like for like in alike if index in of_heads and kinds.get(like) == of_heads[index]]
    if matches:
        return matches[-1]
    raise _refusal(head.name, f"its layer {index} is like several layers of different attention")


def _why_unlike(
    model: MoEModel, index: int, tensors: LayerTensors, trunk: Mapping[int, LayerTensors]
) -> str:
    """Why no layer of the trunk is like a head's layer."""
    scales = set(filter(_SCALE.search, tensors))
    for layer_tensors in trunk.values():
        layer_scales = set(filter(_SCALE.search, layer_tensors))
        if layer_scales != scales and set(layer_tensors) - layer_scales <= set(tensors):
            return f"its layer {index} is quantised otherwise than those of {model.name}"
    return f"no layer of {model.name} is built like its layer {index}"


def _entry_tensors(head: Head, entries: list[TensorEntry]) -> dict[str, TensorEntry]:
    """The norms and the projection among the tensors outside of a head's layers."""
    by_kind: dict[str, TensorEntry] = {}
    for entry in entries:
        stem, _, role = entry.name.rpartition(".")
        if _SCALE.search(entry.name):
            raise _refusal(head.name, f"{stem}.weight is quantised")
        part = stem.rpartition(".")[2]
        kinds = [kind for kind, names in _ENTRIES.items() if part in names and role == "weight"]
        if kinds and kinds[0] not in by_kind:
            by_kind[kinds[0]] = entry
            continue
        # Its name within the head, or within its layer of the head.
        name = re.sub(rf"{re.escape(head.trunk)}\.\d+\.", "", entry.name, count=1)
        if kinds or not _BEHIND.fullmatch(name.removeprefix(f"{head.name}.")):
            raise _refusal(head.name, f"what {entry.name} does in it is not known")
    for kind, names in _ENTRIES.items():
        if kind not in by_kind:
            raise _refusal(head.name, f"it has no tensor {' or '.join(names)}")
    width, shape = by_kind["hidden_norm"].numel, by_kind["projection"].shape
    if shape != (width, 2 * width) or by_kind["embedding_norm"].numel != width:
        raise _refusal(head.name, "its norms and its projection do not fit each other")
    if quantised := [entry.name for entry in by_kind.values() if entry.dtype not in _PLAIN]:
        raise _refusal(head.name, f"{quantised[0]} is quantised")
    return by_kind
