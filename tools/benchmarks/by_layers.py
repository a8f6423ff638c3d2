"""Calibration layer by layer against a forward that reads the same weights in the same way.

`OMP_NUM_THREADS=1 PYTHONPATH=.:tests python -m tools.benchmarks.by_layers FOLDER
[--model Qwen3-30B-A3B] [--layers 3] [--experts 32] [--tokens 4096] [--rounds 4]`

Writes random weights of a published model's shapes into a scratch folder, as `real_size` does. Both
run in this process, in turn; the least of each counts, as other programs only add. Processor time,
and which part of it is the kernel's: reading, and giving memory that was not used before.
"""

import argparse
import resource
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from analysis.calibration.loading import CalibrationSettings, Placement
from analysis.calibration.run import calibrate
from analysis.corpora.sequences import TokenSequences
from analysis.drain import drain
from analysis.stats.store import StatsStore
from layouts.published import LAYOUTS
from tools.benchmarks.forward import forward
from tools.benchmarks.real_size import BATCH, SEQ_LEN, prepared


@dataclass(frozen=True)
class Used:
    """What a run took of the processor."""

    user: float  # seconds
    kernel: float  # seconds
    faults: int  # pages that were given

    @property
    def cpu(self) -> float:
        """Seconds."""
        return self.user + self.kernel


def used(action: Callable[[], object]) -> Used:
    """What an action takes."""
    before = resource.getrusage(resource.RUSAGE_SELF)
    action()
    after = resource.getrusage(resource.RUSAGE_SELF)
    return Used(
        after.ru_utime - before.ru_utime,
        after.ru_stime - before.ru_stime,
        after.ru_minflt - before.ru_minflt,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("folder", type=Path, help="a scratch folder")
    parser.add_argument("--model", default="Qwen3-30B-A3B", choices=sorted(LAYOUTS))
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--experts", type=int, help="of a layer, instead of the model's own")
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--rounds", type=int, default=4)
    given = parser.parse_args()
    torch.set_num_threads(1)
    scratch = given.folder.resolve()
    model = prepared(scratch, given.model, given.layers, given.tokens, given.experts)
    vocabulary = int(model.config["vocab_size"])
    ids = np.random.default_rng(0).integers(3, vocabulary, (given.tokens // SEQ_LEN, SEQ_LEN))
    sequences = TokenSequences("random", tuple(ids.astype(np.int32)), len(ids), 0)
    settings = CalibrationSettings(
        SEQ_LEN, device="cpu", batch_size=BATCH, placement=Placement(stream_layers=True)
    )
    stats = scratch / "stats"

    def calibrated() -> None:
        shutil.rmtree(stats, ignore_errors=True)
        drain(calibrate(model, sequences, settings, StatsStore(stats)))

    actions = {
        "forward": lambda: forward(model, sequences, settings),
        "calibration": calibrated,
    }
    for action in actions.values():  # loads libraries, fills the page cache
        action()
    runs: dict[str, list[Used]] = {name: [] for name in actions}
    for _ in range(given.rounds):
        for name, action in actions.items():
            runs[name].append(used(action))
    best = {name: min(some, key=lambda run: run.cpu) for name, some in runs.items()}
    size = sum(entry.nbytes for entry in model.checkpoint.tensors.values()) / 2**30
    print(f"{given.model}, {given.layers} layers, {size:.2f} GiB, {given.tokens} tokens, BF16")
    for name, run in best.items():
        times = ", ".join(f"{one.cpu:.2f}" for one in runs[name])
        print(
            f"  {name:<12} {run.cpu:6.2f} s ({times}): {run.user:.2f} user, "
            f"{run.kernel:.2f} kernel, {run.faults:,} pages"
        )
    print(f"  calibration: {best['calibration'].cpu / best['forward'].cpu:.2f} forwards")


if __name__ == "__main__":
    main()
