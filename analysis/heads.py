"""Prediction heads beyond the trunk (multi-token prediction, MTP) and their experts.

transformers does not run them; `analysis.calibration.heads` does, for the statistics of their
experts. Other engines build them with the same number of experts as the trunk.
"""

import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

from analysis.families.base import any_of
from analysis.model import LocatedTensor, MoEModel

# Parts of composite models that text tokens do not use.
_TOWER = re.compile(
    r"(?:.+\.)?(visual|vision_\w+|audio_\w+|image_\w+|embed_(vision|audio)|sam_model"
    r"|(multi_modal|mm)_projector|patch_merge_mlp|talker|code2wav)\."
)
_OWN_TRUNK = re.compile(r"((?:\w+\.)?mtp)(?:[._])")


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


def is_tower(tensor_name: str) -> bool:
    """Whether a tensor belongs to a part for other media than text."""
    return bool(_TOWER.match(tensor_name))


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
    beyond = re.compile(rf"((?:{any_of(model.family.trunks)})\.(\d+))\.")
    for name in model.checkpoint.tensors:
        if prefix := _OWN_TRUNK.match(name):
            # Its layers are `mtp.layers.0`, or `mtp.0` as in DeepSeek-V4.
            is_layer = name[prefix.end() :].partition(".")[0].isdigit()
            head, trunk = prefix[1], prefix[1] if is_layer else f"{prefix[1]}.layers"
        elif (match := beyond.match(name)) and int(match[2]) >= model.depth:
            head, trunk = match[1], match[1].rpartition(".")[0]
        else:
            continue
        names[head].append(name)
        trunks[head] = trunk
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
