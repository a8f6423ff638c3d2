"""An unfinished run: its lock, the state on disk from which it goes on, and when to save it."""

import json
import logging
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import safetensors
import safetensors.torch
from filelock import FileLock, Timeout
from torch import Tensor

from analysis.calibration.distributed import Processes, Sums, folded
from analysis.calibration.expert_parallel import joined
from analysis.calibration.hidden import content_sum
from analysis.calibration.sums import GroupSums
from analysis.durable import PARTIAL, partial_of, written_durably
from analysis.errors import StatsError
from analysis.stats.tables import RunManifest

logger = logging.getLogger(__name__)

_STATE = "state.safetensors"
_SAVE_EVERY_SECONDS = 30.0
# Sums of large models take long to write; saving them stays below a twentieth of the time.
_TIMES_THE_SAVE = 20


@dataclass(slots=True)
class RunState:
    """Where a run stands, which all its processes agree on."""

    done: int = 0  # sequences that are in the sums; not used where layers are streamed
    tokens: int = 0  # their tokens, once for each layer where layers are streamed
    seconds: float = 0.0  # time spent on them
    layers: int = 0  # layers done, where they are streamed
    way: str = "batches"  # how the run goes through the work; another way cannot go on from here
    attention: str = ""  # implementation that the model used
    devices: str = ""  # where its weights lay


class PartialRun:
    """The `.partial` directory of a run: its lock and its resumable state."""

    def __init__(self, parent: Path, manifest: RunManifest) -> None:
        self._manifest = manifest
        self.path = partial_of(parent / manifest.run_id)
        self._lock = FileLock(parent / f".{manifest.run_id}{PARTIAL}.lock", timeout=0)
        self._saved_at = time.monotonic()
        self._save_took = 0.0

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the run; the directory exists meanwhile, and afterwards if something is in it."""
        # Not made before the lock is held: whoever holds it may rename the directory away.
        self.path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with self._lock:
                self.path.mkdir(exist_ok=True)
                try:
                    yield
                finally:
                    if self.path.is_dir() and not any(self.path.iterdir()):
                        self.path.rmdir()
                    # While it is held: afterwards it may be another's.
                    Path(self._lock.lock_file).unlink(missing_ok=True)
        except Timeout as error:
            raise StatsError(
                f"{self._manifest.run_id} is being calibrated by another process; wait for it to "
                "finish."
            ) from error

    def is_due(self) -> bool:
        """Whether it is time to save."""
        pause = max(_SAVE_EVERY_SECONDS, _TIMES_THE_SAVE * self._save_took)
        return time.monotonic() - self._saved_at > pause

    def save(self, parts: Sequence[Mapping[str, Tensor]], state: RunState) -> None:
        """Replace the saved state in one step.

        One part for each process, so that each gets its own sums back: the numbers then do not
        depend on where a run stopped.
        """
        started = time.monotonic()
        tensors = {
            f"{rank}/{name}": t for rank, part in enumerate(parts) for name, t in part.items()
        }
        said = json.dumps(asdict(state))
        metadata = {
            "digest": self._manifest.digest,
            "state": said,
            "sum": content_sum(tensors, said),
        }
        with written_durably(self.path / _STATE) as draft:
            safetensors.torch.save_file(tensors, draft, metadata=metadata)
        self._saved_at = time.monotonic()
        self._save_took = self._saved_at - started

    def restore(self) -> tuple[RunState, list[dict[str, Tensor]]]:
        """The saved state and the sums of each process; no sums when there are none of this run."""
        path = self.path / _STATE
        if not path.is_file():
            return RunState(), []
        try:
            with safetensors.safe_open(path, framework="pt") as file:
                metadata = file.metadata() or {}
                if metadata.get("digest") != self._manifest.digest:
                    return RunState(), []
                tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
            if content_sum(tensors, metadata["state"]) != metadata["sum"]:
                raise ValueError("it is not what was saved")  # noqa: TRY301
            state = RunState(**json.loads(metadata["state"]))
        except (safetensors.SafetensorError, ValueError, KeyError, TypeError):
            logger.warning("The saved state %s cannot be read; starting over.", path)
            return RunState(), []
        parts: dict[int, dict[str, Tensor]] = {}
        for key, tensor in tensors.items():
            rank, _, name = key.partition("/")
            parts.setdefault(int(rank), {})[name] = tensor
        return state, [parts[rank] for rank in sorted(parts)]

    def forget(self) -> None:
        """Start from scratch next time."""
        for left in self.path.iterdir():
            shutil.rmtree(left) if left.is_dir() else left.unlink()


@dataclass(frozen=True, slots=True)
class Work:
    """A run under way, in one of its processes."""

    manifest: RunManifest  # what the run will be
    processes: Processes  # who takes part
    partial: PartialRun | None  # where the first process keeps the state; None in the others
    sums: GroupSums  # this process's share
    state: RunState  # where the run stands
    # All processes run the same batches, each with a part of the experts.
    shares_batches: bool = False

    @property
    def turn(self) -> int:
        """Batches that are run at the same time, by all processes together."""
        return 1 if self.shares_batches else self.processes.world

    def save(self) -> None:
        """Save where the run stands; all processes take part."""
        parts = self.processes.gather(self.sums.tensors())
        if self.partial:
            self.partial.save(parts, self.state)

    def is_due(self) -> bool:
        """Whether the first process finds that it is time to save."""
        return bool(self.processes.share(self.partial.is_due() if self.partial else None))

    def collect(self) -> None:
        """Bring all sums together in the first process."""
        parts = self.processes.incoming(self.sums.tensors())
        # Blocks of experts are no larger together than the whole; sums of all experts are.
        if total := joined(list(parts)) if self.shares_batches else folded(parts):
            self.sums.load(total)


def resumed(processes: Processes, partial: PartialRun | None, way: str) -> tuple[RunState, Sums]:
    """Where the run goes on, and the sums that this process has from before; empty: none.

    `partial` is None in all processes but the first. What was saved in another `way` is dropped.
    """
    state, parts = partial.restore() if partial else (RunState(), [])
    if state.way != way or not parts:
        state, parts = RunState(way=way), []
        if partial:
            partial.forget()
    shared = processes.share({"state": asdict(state), "parts": len(parts)})
    state = RunState(**shared["state"])
    if not shared["parts"]:
        return state, {}
    if parts and len(parts) != processes.world:
        # Fewer or more processes than before: the first one takes all that there is.
        parts = [folded(parts)] + [{} for _ in range(processes.world - 1)]
    return state, processes.scatter(parts)
