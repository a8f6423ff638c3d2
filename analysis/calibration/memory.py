"""Memory that each way of running a model needs, and which way fits."""

import re
from collections import Counter
from dataclasses import dataclass

import torch

from analysis.calibration.free import free_memory
from analysis.calibration.hidden import are_too_large
from analysis.calibration.loading import (
    DTYPES,
    CalibrationSettings,
    resolve_device,
    resolve_dtype,
)
from analysis.calibration.streamed import hidden_bytes
from analysis.calibration.sums import sums_of
from analysis.checkpoint import TensorEntry
from analysis.corpora import TokenSequences
from analysis.errors import CheckpointError
from analysis.model import MoEModel

_GIB = 1 << 30
_NUMBER = re.compile(r"\.(\d+)\.")


@dataclass(frozen=True, slots=True)
class MemoryNeeds:
    """Bytes beside the Python process itself, estimated.

    Args:
        whole: of the whole model on one device; in every process of a data parallel run.
        streamed: of one layer at a time.
        free: what this process may take of the device.
    """

    whole: int
    streamed: int
    free: int

    @property
    def advice(self) -> str:
        """Which way fits, as options of the command line."""
        if self.whole <= self.free:
            return "fits as it is; more processes (torchrun) each need as much"
        if self.streamed <= self.free:
            return "does not fit whole: --stream-layers, or --device-map auto --offload-folder DIR"
        return "does not fit, not even layer by layer: a smaller --batch-size, or more memory"


def _elements(entry: TensorEntry) -> int:
    # MXFP4 packs two elements into a byte.
    return entry.numel * 2 if entry.name.endswith("_blocks") else entry.numel


def memory_needs(
    model: MoEModel, sequences: TokenSequences, settings: CalibrationSettings
) -> MemoryNeeds:
    """What the whole model and a streamed run would take, and what there is."""
    item = DTYPES[resolve_dtype(settings.dtype, model)].itemsize
    parts: Counter[str] = Counter()
    for entry in model.checkpoint.tensors.values():
        number = _NUMBER.search(entry.name)
        parts[number[1] if number else entry.name] += _elements(entry) * item
    sums = sum(tensor.nbytes for tensor in sums_of(model, settings.groups).tensors().values())
    longest = max(len(row) for row in sequences.rows)
    routed = model.layers[0].top_k * 8 * 32
    running = settings.batch_size * longest * (12 * model.hidden_size * item + routed)
    hidden = hidden_bytes(model, sequences, settings)
    kept = 0 if are_too_large(hidden) or settings.placement.hidden_states_dir else hidden
    return MemoryNeeds(
        whole=sum(parts.values()) + sums + running,
        streamed=max(parts.values()) + sums + running + kept,
        free=_free(resolve_device(settings.device)),
    )


def _free(device: torch.device) -> int:
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    return free_memory()


def check_fits(model: MoEModel, sequences: TokenSequences, settings: CalibrationSettings) -> None:
    """Refuse a model that is larger than memory, before it is loaded.

    Raises:
        CheckpointError: says how much it needs, and which option would work.
    """
    place = settings.placement
    if place.stream_layers or place.device_map or place.expert_parallel:
        return
    needs = memory_needs(model, sequences, settings)
    if needs.whole > needs.free:
        raise CheckpointError(
            f"{model.name} needs about {needs.whole / _GIB:.1f} GiB, of which "
            f"{needs.free / _GIB:.1f} GiB are free. With --stream-layers it needs about "
            f"{needs.streamed / _GIB:.1f} GiB; or spread it with --device-map auto "
            "--offload-folder DIR."
        )
