"""Safetensors files of a folder that no index lists, and what they hold.

transformers does not read them. GLM-4.7 comes with a prediction head in such a file: it is read as
part of the model, and an export asks what to do with it. Others are named, and not read.
"""

import re
from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache

from analysis.checkpoint.index import Checkpoint, Shard, is_copy
from analysis.families.base import MoEFamily
from analysis.model.heads import head_of, is_tower, trunk_layer
from analysis.model.moe_model import MoEModel

# Adapters of layers.
_ADAPTER = re.compile(r".*(lora_|adapter|\.(ia3|hada|oft|vera)_)")
_LAYER = re.compile(r"(.+\.)?(layers|blocks|h)\.\d+\.")
_EXPERTS = re.compile(r"(.+\.)?experts\.")


class Holding(StrEnum):
    """What such a file holds, in words."""

    HEADS = "prediction heads"
    EXPERTS = "experts"
    LAYERS = "layers"
    COPIES = "tensors that are listed in other files"
    OTHER = "no part of the model"
    UNREADABLE = "nothing that can be read"


MODEL_PARTS = frozenset((Holding.HEADS, Holding.EXPERTS, Holding.LAYERS))


@dataclass(frozen=True, slots=True)
class OtherFile:
    """A safetensors file that no index lists."""

    name: str
    holdings: tuple[Holding, ...]  # what it holds, parts of the model first
    count: int  # tensors that are of the first of these
    example: str  # one of them; empty without tensors
    is_read: bool  # as part of the model: it holds prediction heads alone, and nothing twice

    @property
    def words(self) -> str:
        """What it holds, for people."""
        number = f"{self.count} tensor{'s' * (self.count != 1)}, such as {self.example}"
        return " and ".join(self.holdings) + (f" ({number})" if self.example else "")


@lru_cache(maxsize=4)
def other_files(model: MoEModel) -> tuple[OtherFile, ...]:
    """Safetensors files of a model's folder that no index lists, in the order of their names."""
    return tuple(file for file, _ in files_beside(model.checkpoint, model.family, model.depth))


def files_beside(
    checkpoint: Checkpoint, family: MoEFamily, depth: int
) -> Iterator[tuple[OtherFile, Shard]]:
    """The files of a folder that are no part of the model by its index; `depth` is of the trunk."""
    ours = {shard.name for shard in checkpoint.others}
    listed = {name for name, entry in checkpoint.tensors.items() if entry.shard not in ours}
    occurrences = Counter(entry.name for shard in checkpoint.others for entry in shard.tensors)
    for shard in checkpoint.others:
        names = [entry.name for entry in shard.tensors]
        kinds = {name: _holding(name, shard.name, listed, family, depth) for name in names}
        holdings = tuple(kind for kind in Holding if kind in kinds.values())
        first = holdings[0] if holdings else Holding.UNREADABLE
        of_first = [name for name, kind in kinds.items() if kind is first]
        is_read = set(holdings) == {Holding.HEADS} and all(occurrences[name] == 1 for name in names)
        example = of_first[0] if of_first else ""
        yield OtherFile(shard.name, holdings or (first,), len(of_first), example, is_read), shard


def _holding(
    name: str, file: str, listed: Collection[str], family: MoEFamily, depth: int
) -> Holding:
    """What one tensor of a file that no index lists is."""
    if name in listed or is_copy(file):
        return Holding.COPIES
    if is_tower(name) or _ADAPTER.match(name):
        return Holding.OTHER
    if head_of(name, family.trunks, depth):
        return Holding.HEADS
    if family.routed_layer(name) is not None or _EXPERTS.match(name):
        return Holding.EXPERTS
    in_layers = trunk_layer(name, family.trunks) is not None or _LAYER.match(name)
    return Holding.LAYERS if in_layers else Holding.OTHER
