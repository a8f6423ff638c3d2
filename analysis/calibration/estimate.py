"""What a calibration would take: tokens, memory, time; the model is not loaded."""

import time
from dataclasses import dataclass

import torch

from analysis.calibration.loading import DTYPES, CalibrationSettings, resolve_device, resolve_dtype
from analysis.calibration.memory import MemoryNeeds, memory_needs
from analysis.corpora import TokenSequences
from analysis.families import SlotKind
from analysis.model import MoEModel

# Attention, norms and routing run far below the speed of a large matrix product. Measured on the
# demo model and on a 64-expert layer, a forward reaches a third of it.
_SHARE_OF_MATMUL_SPEED = 0.33
_MEASURE_SECONDS = 0.2
# Backward follows the inputs of every product, not the weights: as much again, and the head.
_TIMES_WITH_BACKWARD = 2.5


@dataclass(frozen=True, slots=True)
class Estimate:
    """Tokens are exact; memory and time are estimates.

    Args:
        num_sequences, num_tokens, num_padded: what would be fed.
        memory_bytes: weights, sums and activations of the way that the settings choose; the
            Python process itself comes on top.
        needs: the same for each way, and what is free.
        seconds: of the passes, without loading the model.
    """

    num_sequences: int
    num_tokens: int
    num_padded: int
    memory_bytes: int
    needs: MemoryNeeds
    seconds: float


def active_params(model: MoEModel) -> int:
    """Parameters in matrix products for one token: without embeddings, with top_k experts."""
    layers = {layer.index: layer for layer in model.layers}
    active = 0
    for entry in model.checkpoint.tensors.values():
        if "embed" in entry.name or "lm_head" in entry.name or len(entry.shape) < 2:
            continue
        slot = model.family.locate(entry.name)
        if slot and slot.kind is not SlotKind.ROUTER:
            layer = layers[slot.layer]
            active += entry.numel * layer.top_k // layer.num_experts
        else:
            active += entry.numel
    return active


def _matmul_speed(model: MoEModel, settings: CalibrationSettings) -> float:
    """Multiply-adds per second, measured here and now."""
    device = resolve_device(settings.device)
    dtype = DTYPES[resolve_dtype(settings.dtype, model)]
    left = torch.ones(512, model.hidden_size, dtype=dtype, device=device)
    right = torch.ones(model.hidden_size, 512, dtype=dtype, device=device)
    best = 0.0
    stop = time.monotonic() + _MEASURE_SECONDS
    while time.monotonic() < stop:
        started = time.perf_counter()
        float((left @ right)[0, 0])  # reading a value waits for the device
        best = max(best, 512 * 512 * model.hidden_size / (time.perf_counter() - started))
    return best


def estimate(model: MoEModel, sequences: TokenSequences, settings: CalibrationSettings) -> Estimate:
    """Exact tokens, and what memory and time to expect."""
    needs = memory_needs(model, sequences, settings)
    padded = sequences.num_padded(settings.batch_size)
    times = _TIMES_WITH_BACKWARD if "gradient" in settings.groups else 1.0
    work = active_params(model) * (sequences.num_tokens + padded) * times
    return Estimate(
        num_sequences=len(sequences.rows),
        num_tokens=sequences.num_tokens,
        num_padded=padded,
        memory_bytes=needs.streamed if settings.placement.stream_layers else needs.whole,
        needs=needs,
        seconds=work / (_matmul_speed(model, settings) * _SHARE_OF_MATMUL_SPEED),
    )
