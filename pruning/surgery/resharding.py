"""Another layout of shards, none larger than asked for; each tensor stays in one piece."""

import json
import re
from collections.abc import Iterator, Sequence

from analysis.errors import ExportError
from analysis.model import MoEModel
from pruning.sizes import SIZE_UNITS
from pruning.surgery.shards import PlannedShard, PlannedTensor, assemble

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]?i?B?)", re.IGNORECASE)
# Of a tensor in a header: type, shape and offsets, besides its name.
_ENTRY_BYTES = 160
_FIXED_BYTES = 256  # length, metadata and filling of a header
_LONGEST_SIZE = 32  # of its text


def parse_size(text: str) -> int:
    """Bytes of a size such as `5GB`, `500MB`, `1.5GiB` or `1000000`."""
    match = _SIZE.fullmatch(text.strip())
    units = {"": 1, **SIZE_UNITS}
    unit = units.get(match[2].upper()) if match and len(text) < _LONGEST_SIZE else None
    if match is None or unit is None:
        raise ExportError(f"The size {text!r} is not understood; write 5GB, 500MB or 1.5GiB.")
    size = int(float(match[1]) * unit)
    if size < 1000:
        raise ExportError(f"A shard of at most {size} bytes is too small; give 1KB or more.")
    return size


def reshard(model: MoEModel, shards: Sequence[PlannedShard], most: int) -> tuple[PlannedShard, ...]:
    """The same tensors in the same order, in as few files of at most `most` bytes.

    A file with a single tensor may be larger.
    """
    tensors = [tensor for shard in shards for tensor in shard.tensors]
    metadata = next((each.metadata for each in model.checkpoint.shards if each.metadata), {})
    groups = list(_groups(tensors, most))
    if len(groups) == 1:
        return (assemble("model.safetensors", groups[0], metadata),)
    return tuple(
        assemble(f"model-{number:05d}-of-{len(groups):05d}.safetensors", group, metadata)
        for number, group in enumerate(groups, 1)
    )


def _groups(tensors: Sequence[PlannedTensor], most: int) -> Iterator[list[PlannedTensor]]:
    group: list[PlannedTensor] = []
    size = _FIXED_BYTES
    for tensor in tensors:
        # Names may hold letters that take more than a byte, or are escaped.
        takes = tensor.nbytes + len(json.dumps(tensor.name)) + _ENTRY_BYTES
        if group and size + takes > most:
            yield group
            group, size = [], _FIXED_BYTES
        group.append(tensor)
        size += takes
    yield group
