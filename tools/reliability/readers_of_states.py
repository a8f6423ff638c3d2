"""Readers of unfinished calibrations, which go on from what was saved; see `readers`."""

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

from analysis.calibration import partial
from analysis.drain import drain
from analysis.files.durable import PARTIAL
from pruning.requests.calibration import CalibrateRequest
from pruning.tasks.calibration import calibrate_run
from tools.reliability import examples
from tools.reliability.reader import TENSORS, Reader, scratch

BATCHES, STREAMED = "unfinished", "unfinished-streamed"
STATE, HIDDEN = "state.safetensors", "hidden-1/1.safetensors"
_WANTED = "wanted.json"
# Steps of the task after which it is left: in its middle, in batches and between layers.
_STEPS = {BATCHES: 6, STREAMED: 10}


def _request(root: Path, kind: str, stats_dir: Path) -> CalibrateRequest:
    return CalibrateRequest(
        model=str(root / examples.MODEL),
        corpus=str(root / examples.TEXTS / "rows.jsonl"),
        tokens=48,
        seq_len=8,
        batch_size=2,
        device="cpu",
        stream_layers=kind == STREAMED,
        stats_dir=stats_dir,
    )


def make_states(root: Path) -> None:
    """A run of each kind that was left in its middle, and the digests of what it would make."""
    for kind, steps in _STEPS.items():
        with scratch(root) as made:
            run = drain(calibrate_run(_request(root, kind, made)))
            left = run.manifest.run_id + PARTIAL
            wanted = {"left": left, "files": dict(run.manifest.files)}
        with scratch(root) as made:
            _interrupted(_request(root, kind, made), steps)
            shutil.copytree(made / left, root / kind)
        (root / kind / _WANTED).write_text(json.dumps(wanted))


def _interrupted(request: CalibrateRequest, steps: int) -> None:
    before = partial._SAVE_EVERY_SECONDS, partial._TIMES_THE_SAVE
    partial._SAVE_EVERY_SECONDS = partial._TIMES_THE_SAVE = 0
    try:
        task = calibrate_run(request)
        for _ in range(steps):
            next(task)
        task.close()
    finally:
        partial._SAVE_EVERY_SECONDS, partial._TIMES_THE_SAVE = before


def _resumed(kind: str) -> Callable[[Path], object]:
    def read(root: Path) -> None:
        wanted = json.loads((root / kind / _WANTED).read_bytes())
        with scratch(root) as made:
            shutil.copytree(root / kind, made / wanted["left"])
            (made / wanted["left"] / _WANTED).unlink()
            run = drain(calibrate_run(_request(root, kind, made)))
        assert dict(run.manifest.files) == wanted["files"], "another result than in one go"

    return read


def readers() -> Iterator[Reader]:
    for kind in (BATCHES, STREAMED):
        yield Reader(f"{kind}, state", f"{kind}/{STATE}", TENSORS, _resumed(kind))
    yield Reader("hidden states", f"{STREAMED}/{HIDDEN}", TENSORS, _resumed(STREAMED))
