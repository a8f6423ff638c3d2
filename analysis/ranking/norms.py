"""Norms of every neuron's weights, streamed from safetensors, for the criterion NEURON_NORMS.

The score of neuron c is ||gate_c|| * ||up_c|| * ||down_c||: L2 norms of its rows of gate (if any)
and up and of its column of down, without biases. The product does not change if one matrix is
scaled up and another down. It ignores the inputs: a default without calibration, not a method of
the papers.
"""

import math
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import BinaryIO

import numpy as np

from analysis.errors import CheckpointError, UnsupportedModelError
from analysis.model.moe_model import LocatedTensor, MoEModel, is_expert_weight
from analysis.model.widths import NeuronAxis, expert_widths, neuron_axis
from analysis.numbers.arrays import FloatArray, NeuronScores
from analysis.numbers.elements import FLOAT_BYTES, as_float64
from analysis.progress import Progress, bytes_progress

_CHUNK_ELEMENTS = 1 << 21  # decoded at once, to float64: 16 MiB


def neuron_norms(model: MoEModel) -> Generator[Progress, None, NeuronScores]:
    """The product of the norms of every neuron; matrices are read one at a time, in blocks."""
    widths = expert_widths(model)
    scores = {layer: tuple(map(np.ones, sizes)) for layer, sizes in widths.items()}
    items = [item for layer in widths for item in model.located[layer]]
    weights = [item for item in items if is_expert_weight(item.slot)]
    done, total = 0, sum(item.entry.nbytes for item in weights)
    for item in weights:
        where = neuron_axis(model.family, item.slot)
        if item.entry.dtype not in FLOAT_BYTES or where is None:
            raise UnsupportedModelError(
                f"{item.entry.name} has dtype {item.entry.dtype}, whose neurons cannot be "
                f"measured; supported: {', '.join(FLOAT_BYTES)}. Dequantise the checkpoint first."
            )
        _multiply_by_norms(scores[item.slot.layer], item, where, model.checkpoint.path)
        done += item.entry.nbytes
        yield bytes_progress("reading weights", done, total, "hash")
    return scores


def _multiply_by_norms(
    scores: tuple[FloatArray, ...], item: LocatedTensor, where: NeuronAxis, path: Path
) -> None:
    """Multiply the scores of a layer by the norms in one of its tensors."""
    entry, slot = item.entry, item.slot
    stacked = slot.expert is None
    inner = entry.shape[1:] if stacked else entry.shape
    axis = where.axis - int(stacked)
    shape = (math.prod(inner[:axis]), inner[axis], math.prod(inner[axis + 1 :]))
    with (path / entry.shard).open("rb") as file:
        file.seek(entry.start)
        for expert in range(entry.shape[0]) if slot.expert is None else (slot.expert,):
            squares = np.zeros(shape[1])
            for first, part in _blocks(file, entry.dtype, shape):
                squares[first : first + part.shape[1]] += np.einsum("rcs,rcs->c", part, part)
            if not np.isfinite(squares).all():
                raise CheckpointError(
                    f"{entry.name} has values that are not finite; fetch the checkpoint again."
                )
            # Split into gate and up if both lie along one axis.
            norms, parts = np.sqrt(squares), where.parts
            alternate = [norms[part::parts] for part in range(parts)]
            for factor in alternate if where.interleaved else np.split(norms, parts):
                scores[expert][:] *= factor


def _blocks(
    file: BinaryIO, dtype: str, shape: tuple[int, int, int]
) -> Iterator[tuple[int, FloatArray]]:
    """Blocks (rows, entries, elements) of one expert's matrix, with their first entry."""
    rows, count, size = shape
    if not rows * count * size:
        return
    # Blocks of whole rows, or of entries if there is only one row.
    step = max(1, _CHUNK_ELEMENTS // (size if rows == 1 else count * size))
    for first in range(0, count if rows == 1 else rows, step):
        length = min(step, (count if rows == 1 else rows) - first)
        block = (1, length, size) if rows == 1 else (length, count, size)
        nbytes = math.prod(block) * FLOAT_BYTES[dtype]
        raw = file.read(nbytes)
        if len(raw) < nbytes:
            raise CheckpointError("A shard became shorter while it was read.")
        yield (first if rows == 1 else 0), as_float64(raw, dtype).reshape(block)
