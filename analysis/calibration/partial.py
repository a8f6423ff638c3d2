"""An unfinished run: its lock, its saved state, and what its manifest says of how it was made."""

import json
import logging
import platform
import resource
import shutil
import sys
import time
from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import safetensors.torch
import torch
import transformers
from filelock import FileLock, Timeout
from safetensors import SafetensorError
from torch import Tensor
from transformers import PreTrainedModel

from analysis.calibration.distributed import Processes, Sums
from analysis.calibration.hidden import content_sum
from analysis.calibration.line import Line
from analysis.calibration.loading import CalibrationSettings, resolve_device
from analysis.calibration.sums import GroupSums
from analysis.errors import StatsError, first_line
from analysis.files.durable import PARTIAL, make_folder, partial_of, written_durably
from analysis.files.naming import now
from analysis.stats.manifest import RunManifest

logger = logging.getLogger(__name__)

_STATE = "state.safetensors"
_SAVE_EVERY_SECONDS = 30.0
_TIMES_THE_SAVE = 20  # saving the sums of a large model takes at most a twentieth of the time


@dataclass(slots=True)
class RunState:
    """Progress of a run, the same in all its processes."""

    done: int = 0  # sequences in the sums; unused if layers are streamed
    tokens: int = 0  # their tokens, counted once per layer if layers are streamed
    seconds: float = 0.0  # time spent on them
    layers: int = 0  # layers done, if they are streamed
    way: str = "batches"  # order of the work; a run with another order cannot resume from here
    attention: str = ""  # implementation that the model used
    devices: str = ""  # of its weights


class PartialRun:
    """The `.partial` directory of a run: its lock and its resumable state."""

    def __init__(self, parent: Path, manifest: RunManifest) -> None:
        self._manifest = manifest
        self.path = partial_of(parent / manifest.run_id)
        self._lock = FileLock(parent / f".{manifest.run_id}{PARTIAL}.lock", timeout=0)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the run's lock and directory, which is removed afterwards if it is empty."""
        # Made only under the lock: its holder may rename the directory away.
        make_folder(self.path.parent)
        try:
            with self._lock:
                self.path.mkdir(exist_ok=True)
                try:
                    yield
                finally:
                    if self.path.is_dir() and not any(self.path.iterdir()):
                        self.path.rmdir()
                    # Before it is released: afterwards it may belong to another process.
                    Path(self._lock.lock_file).unlink(missing_ok=True)
        except Timeout as error:
            raise StatsError(
                f"{self._manifest.run_id} is being calibrated by another process; wait for it to "
                "finish."
            ) from error

    def save(self, tensors: Mapping[str, Tensor], state: RunState) -> None:
        """Replace the saved state atomically."""
        state_json = json.dumps(asdict(state))
        metadata = {
            "digest": self._manifest.digest,
            "state": state_json,
            "sum": content_sum(tensors, state_json),
        }
        with written_durably(self.path / _STATE) as draft:
            try:
                safetensors.torch.save_file(dict(tensors), draft, metadata=metadata)
            except SafetensorError as error:  # as of a full disk
                raise OSError(0, first_line(error), str(self.path)) from error

    def restore(self) -> tuple[RunState, dict[str, Tensor]]:
        """The saved state and the sums; no sums if none of this run are saved."""
        path = self.path / _STATE
        if not path.is_file():
            return RunState(), {}
        try:
            with safetensors.safe_open(path, framework="pt") as file:
                metadata = file.metadata() or {}
                if metadata.get("digest") != self._manifest.digest:
                    return RunState(), {}
                tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
            if content_sum(tensors, metadata["state"]) != metadata["sum"]:
                raise ValueError("the checksum differs")  # noqa: TRY301
            state = RunState(**json.loads(metadata["state"]))
        except (safetensors.SafetensorError, ValueError, KeyError, TypeError):
            logger.warning("The saved state %s cannot be read; starting over.", path)
            return RunState(), {}
        return state, tensors

    def forget(self) -> None:
        """Start from scratch next time."""
        for entry in self.path.iterdir():
            shutil.rmtree(entry) if entry.is_dir() else entry.unlink()


@dataclass(slots=True)
class _Clock:
    """When a process last saved, and how long that took."""

    saved_at: float = field(default_factory=time.monotonic)
    took: float = 0.0


@dataclass(frozen=True, slots=True)
class Work:
    """A run in progress, as one of its processes sees it."""

    manifest: RunManifest  # of the finished run, without its measurements
    processes: Processes
    partial: PartialRun | None  # where the first process saves; None in the others
    sums: GroupSums  # of the layers that this process holds
    state: RunState
    clock: _Clock = field(default_factory=_Clock)

    def save(self, line: Line | None = None) -> None:
        """Save the progress; all processes of a line must call this."""
        started, sums = time.monotonic(), self.sums.tensors()
        with line.gathered(sums) if line else nullcontext([sums]) as parts:
            if self.partial:
                self.partial.save(_joined(parts), self.state)
        self.clock.saved_at = time.monotonic()
        self.clock.took = self.clock.saved_at - started

    def is_due(self) -> bool:
        """Whether it is time to save."""
        pause = max(_SAVE_EVERY_SECONDS, _TIMES_THE_SAVE * self.clock.took)
        return time.monotonic() - self.clock.saved_at > pause

    def collect(self) -> None:
        """Bring all sums to the first process."""
        total = _joined(self.processes.gather(self.sums.tensors()))
        if self.processes.is_first:
            self.sums.load(total)


def _joined(parts: Sequence[Sums]) -> dict[str, Tensor]:
    """The sums of all layers, from those of the processes that hold them."""
    return {name: tensor for part in parts for name, tensor in part.items()}


def resume_state(
    processes: Processes, partial: PartialRun | None, way: str, names: Set[str]
) -> tuple[RunState, Sums]:
    """The state to resume from and the saved sums, empty if there are none.

    `partial` is None in all processes but the first. A state saved by another `way`, or without
    the sums of these `names`, as an earlier version saved it, is dropped.
    """
    state, sums = partial.restore() if partial else (RunState(), {})
    if state.way != way or not names <= sums.keys():
        state, sums = RunState(way=way), {}
        if partial:
            partial.forget()
    state = RunState(**processes.share(asdict(state)))
    return state, processes.spread(sums)


def peak_memory_bytes(device: torch.device) -> int:
    """Peak memory of this process: on the accelerator if it ran there."""
    if device.type == "cuda":
        return int(torch.cuda.max_memory_allocated(device))
    unit = 1 if sys.platform == "darwin" else 1024  # Linux counts KiB, macOS bytes
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def note_model(state: RunState, loaded: PreTrainedModel, settings: CalibrationSettings) -> None:
    """Record what only the loaded model tells: a resumed run may not load it again."""
    state.attention = str(loaded.config.get_text_config()._attn_implementation)
    devices = {str(resolve_device(settings.device))}
    if settings.placement.device_map:
        # transformers keeps no map if all fits on one device; accelerators are named by number.
        places = getattr(loaded, "hf_device_map", {"": loaded.device}).values()
        devices = {f"cuda:{place}" if isinstance(place, int) else str(place) for place in places}
    state.devices = ", ".join(sorted(devices))


def run_facts(work: Work, settings: CalibrationSettings) -> dict[str, Any]:
    """The manifest's `made`: host, time, memory and versions; not part of the digest."""
    state, device = work.state, resolve_device(settings.device)
    return {
        "created_at": now(),
        "batch_size": settings.batch_size,
        "device": state.devices,
        "processes": work.processes.world,
        "way": "layers" if settings.placement.stream_layers else "batches",
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
