"""Prediction heads beyond the trunk (multi-token prediction, MTP): their names, their experts.

transformers does not run them; `analysis.calibration.heads` does, for the statistics of their
experts. Other engines build them with the same number of experts as the trunk.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from analysis.checkpoint.index import TensorEntry
from analysis.families.base import MoELayer, any_of
from analysis.model.moe_model import LocatedTensor, MoEModel

# Name within a layer -> tensor.
LayerTensors = Mapping[str, TensorEntry]
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


@dataclass(frozen=True, eq=False)
class Head:
    """A prediction head."""

    name: str  # prefix of its tensors, such as `model.layers.61` or `mtp`
    tensors: tuple[str, ...]  # names of all its tensors
    located: Mapping[int, tuple[LocatedTensor, ...]]  # expert and router tensors by layer index
    trunk: str  # prefix of its layers

    @property
    def prefix(self) -> str:
        """The prefix that only its tensors have."""
        return f"{self.name}." if self.name[-1].isdigit() else self.name

    @property
    def has_experts(self) -> bool:
        """Whether it holds routed experts, located or not."""
        return bool(self.located) or any(".experts." in name for name in self.tensors)

    def as_model(self, model: MoEModel) -> MoEModel:
        """The head as a model of only its layers with experts."""
        like = model.layers[-1]
        layers = tuple(replace(like, index=index) for index in sorted(self.located))
        return replace(model, family=replace(model.family, trunks=(self.trunk,)), layers=layers)


@lru_cache(maxsize=4)
def beside_text(model: MoEModel) -> frozenset[str]:
    """Names of the tensors that no text token uses: prediction heads, towers of other media."""
    heads = (name for head in prediction_heads(model) for name in head.tensors)
    towers = filter(is_tower, model.checkpoint.tensors)
    return frozenset((*heads, *towers))


@lru_cache(maxsize=4)
def prediction_heads(model: MoEModel) -> tuple[Head, ...]:
    """The heads of a checkpoint, in the order of their names; most have none."""
    names: defaultdict[str, list[str]] = defaultdict(list)
    trunks: dict[str, str] = {}
    for name in model.checkpoint.tensors:
        if match := head_of(name, model.family.trunks, model.depth):
            head, trunks[match[0]] = match
            names[head].append(name)
    heads = []
    for head, tensors in sorted(names.items()):
        family = replace(model.family, trunks=(trunks[head],))
        located: defaultdict[int, list[LocatedTensor]] = defaultdict(list)
        for name in tensors:
            if slot := family.locate(name):
                located[slot.layer].append(LocatedTensor(model.checkpoint.tensors[name], slot))
        by_layer = {layer: tuple(items) for layer, items in located.items()}
        heads.append(Head(head, tuple(tensors), by_layer, trunks[head]))
    return tuple(heads)


def loaded_bytes(model: MoEModel) -> int:
    """Bytes that are read to run a model: prediction heads are not."""
    heads = {name for head in prediction_heads(model) for name in head.tensors}
    entries = model.checkpoint.tensors.values()
    return sum(entry.nbytes for entry in entries if entry.name not in heads)


def head_experts(model: MoEModel) -> tuple[tuple[str, int, MoELayer], ...]:
    """Layers with experts in heads: the head's name, the index in its names, the layer numbered on.

    Needs no more than that their experts are found; `runnable_heads` says whether they can be run.
    """
    numbers = layer_numbers(model)
    return tuple(
        (head.name, index, replace(model.layers[-1], index=numbers[head.name, index]))
        for head in heads_in_order(model)
        for index in sorted(head.located)
    )


def heads_in_order(model: MoEModel) -> list[Head]:
    """The heads in the order of the numbers in their names."""
    return sorted(
        prediction_heads(model),
        key=lambda head: [int(word) for word in head.name.split(".") if word.isdigit()],
    )


def tensors_by_layer(
    names: Iterable[str], trunks: tuple[str, ...], model: MoEModel
) -> dict[int, LayerTensors]:
    """Tensors by layer, by their names within it."""
    pattern = re.compile(rf"(?:{any_of(trunks)})\.(\d+)\.(.+)")
    layers: defaultdict[int, dict[str, TensorEntry]] = defaultdict(dict)
    for name in names:
        if match := pattern.fullmatch(name):
            layers[int(match[1])][match[2]] = model.checkpoint.tensors[name]
    return dict(layers)


def layer_numbers(model: MoEModel) -> dict[tuple[str, int], int]:
    """(head's name, index in its names) -> number of the layer, counted on from the trunk's."""
    places = [
        (head.name, index)
        for head in heads_in_order(model)
        for index in sorted(tensors_by_layer(head.tensors, (head.trunk,), model))
    ]
    return {place: model.depth + number for number, place in enumerate(places)}
