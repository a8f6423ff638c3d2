"""A hub model by its config.json and the headers of its shards, without a download of weights."""

from collections.abc import Mapping
from typing import Any

from analysis.checkpoint.hub import hub_headers
from analysis.checkpoint.index import Shard, TensorEntry
from analysis.checkpoint.opening import read_config
from analysis.model.describing import describe_model
from analysis.model.moe_model import MoEModel
from analysis.model.opening import config_folder, is_hub_id
from analysis.model.outline import Outline


def hub_outline(source: str, revision: str | None = None) -> MoEModel | None:
    """A hub model by its config.json and the headers of its shards, without a download of weights.

    None if the source is no hub id, or if its headers cannot be read.
    """
    if not is_hub_id(source):
        return None
    folder = config_folder(source, revision)
    if (headers := hub_headers(source, revision)) is None:
        return None
    weights, others = (
        tuple(_bare_shard(name, tensors) for name, tensors in sorted(part.items()))
        for part in headers
    )
    basis = "the headers on the hub"
    checkpoint = Outline(folder, read_config(folder), weights, basis, others=others)
    return describe_model(checkpoint, name=source)


def _bare_shard(name: str, tensors: Mapping[str, Any]) -> Shard:
    """A file by what the hub says of its header."""
    entries = tuple(
        TensorEntry(tensor, name, info.dtype, tuple(info.shape), *info.data_offsets)
        for tensor, info in sorted(tensors.items(), key=lambda item: item[1].data_offsets)
    )
    size = max((entry.end for entry in entries), default=0)
    return Shard(name, size, b"", 0, {}, entries)
