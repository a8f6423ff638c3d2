"""Prediction heads beyond the trunk (multi-token prediction, MTP) and their experts.

transformers does not run them; `analysis.calibration.heads` does, for the statistics of their
experts. Other engines build them with the same number of experts as the trunk.
"""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

from analysis.families.head_names import head_of, is_tower
from analysis.model.moe_model import LocatedTensor, MoEModel


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
