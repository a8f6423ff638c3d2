"""What a manifest says of how a run was made: host, time, memory, versions."""

import platform
import resource
import sys
from typing import Any

import numpy as np
import torch
import transformers
from transformers import PreTrainedModel

from analysis.calibration.loading import CalibrationSettings, resolve_device
from analysis.calibration.partial import RunState, Work
from analysis.stats.store import now


def peak_memory_bytes(device: torch.device) -> int:
    """Most memory that this process has held: on the accelerator if that is where it ran."""
    if device.type == "cuda":
        return int(torch.cuda.max_memory_allocated(device))
    # Linux counts KiB, macOS bytes.
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def note_model(state: RunState, loaded: PreTrainedModel, settings: CalibrationSettings) -> None:
    """Keep what only the model that runs can tell: a run that goes on may not load it again."""
    state.attention = str(loaded.config.get_text_config()._attn_implementation)
    devices = {str(resolve_device(settings.device))}
    if settings.placement.device_map:
        # accelerate calls an accelerator by its number.
        places = loaded.hf_device_map.values()
        devices = {f"cuda:{place}" if isinstance(place, int) else str(place) for place in places}
    state.devices = ", ".join(sorted(devices))


def made(work: Work, settings: CalibrationSettings) -> dict[str, Any]:
    """The manifest's `made`: shown, but no part of the digest."""
    state, device = work.state, resolve_device(settings.device)
    by_layers, by_experts = settings.placement.stream_layers, settings.placement.expert_parallel
    return {
        "created_at": now(),
        "batch_size": settings.batch_size,
        "device": state.devices,
        "processes": work.processes.world,
        "way": "layers" if by_layers else "experts" if by_experts else "batches",
        "attention": state.attention,
        "system": f"{platform.system()} {platform.machine()}",
        "seconds": round(state.seconds, 2),
        "tokens_per_second": round(work.manifest.num_tokens / max(state.seconds, 1e-9), 1),
        "peak_memory_bytes": peak_memory_bytes(device),
        "versions": {
            "python": platform.python_version(),
            "torch": torch.__version__.partition("+")[0],
            "transformers": transformers.__version__,
            "numpy": np.__version__,
        },
    }
