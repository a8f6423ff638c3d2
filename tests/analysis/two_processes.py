"""Run by torchrun in test_distributed.py: what each process saw, as JSON in a file of its own."""

import json
import sys
from dataclasses import replace
from pathlib import Path

import torch

from analysis.calibration import blocks, partial
from analysis.calibration.distributed import join
from analysis.calibration.line import Line
from analysis.calibration.loading import CalibrationSettings
from analysis.calibration.run import calibrate
from analysis.calibration.shares import LayerWork, load_share
from analysis.calibration.skeleton import HEAD, OUTPUT, StoredTensor
from analysis.calibration.weights import weight_statistics
from analysis.drain import drain
from analysis.errors import UserError
from analysis.model.opening import load_model_index
from analysis.progress import Progress
from analysis.stats.store import StatsStore
from builders.tokens import token_sequences

torch.set_num_threads(1)
partial._SAVE_EVERY_SECONDS = partial._TIMES_THE_SAVE = 0.0
ROOT = Path(sys.argv[1])
GROUPS = {"neurons": ("routed", "gradient"), "samples": ("routed", "router", "damage", "dense")}
SETTINGS = CalibrationSettings(seq_len=9, batch_size=2, device="cpu")


def sequences(name="rows"):
    return token_sequences(*json.loads((ROOT / f"{name}.json").read_text()), corpus="rows.jsonl")


def task(model, stats, settings=SETTINGS):
    return calibrate(load_model_index(str(ROOT / model)), sequences(), settings, StatsStore(stats))


def refused(action):
    try:
        action()
    except UserError as error:
        return f"{type(error).__name__}: {error}"
    return "no error"


def fail_in(processes, rank):
    with processes.together():
        if processes.rank == rank:
            raise UserError("no room here")


def failing():
    yield Progress("reading weights", 0, 1)
    raise UserError("no weights here")


def failing_backward():
    """How a run ends whose first process of the line fails in backward; all save each batch."""

    def fail(*_):
        raise UserError("no room for gradients")

    backward, settings = torch.autograd.backward, replace(SETTINGS, groups=GROUPS["neurons"])
    if join().rank:
        torch.autograd.backward = fail
    outcome = refused(lambda: drain(task("qwen3_moe", ROOT / "backward", settings)))
    torch.autograd.backward = backward
    return outcome


def without_room():
    """Why a run with so little free memory is refused, without and with backward."""
    free_memory, blocks.free_memory = blocks.free_memory, lambda: 1000
    outcomes = [
        refused(lambda groups=groups: drain(task("qwen3_moe", ROOT / "small", groups)))
        for groups in (SETTINGS, replace(SETTINGS, groups=GROUPS["neurons"]))
    ]
    blocks.free_memory = free_memory
    return outcomes


def stop_after(steps, stats):
    """The state of both processes stays behind, as after a power cut."""
    running = task("olmoe", stats)
    for _ in range(steps):
        next(running)
    running.close()


def share_of(model):
    """Names of the tensors that this process reads of a model, and bytes of those that it holds."""
    described, read = load_model_index(str(ROOT / model)), []
    read_into = StoredTensor.read_into

    def noting(stored, target):
        read.append(stored.entry.name)
        read_into(stored, target)

    StoredTensor.read_into = noting
    rows, line = sequences(), Line(join())
    work = LayerWork([1.0] * described.depth, next(rows.batches(2)), (HEAD, OUTPUT))
    share = load_share(described, rows, SETTINGS, line, work)
    StoredTensor.read_into = read_into
    held = sum(tensor.nbytes for tensor in share.model.parameters() if not tensor.is_meta)
    return [list(share.layers), sorted(read), held]


def round_trip(processes):
    own = {"a": torch.full((2, 3), 10.0**processes.rank, dtype=torch.float64)}
    parts = processes.gather(own)
    return {
        "parts": [part["a"].tolist() for part in parts],
        "spread": processes.spread(parts[0] if parts else {})["a"].tolist(),
        "total": processes.total(own["a"]).tolist(),
        "shared": processes.share({"rank": processes.rank}),
    }


def main():
    processes = join()
    seen = {"world": processes.world, "round_trip": round_trip(processes)}
    seen["failure"] = [refused(lambda rank=rank: fail_in(processes, rank)) for rank in (0, 1)]
    drain(task("olmoe", ROOT / "both"))
    for name, groups in GROUPS.items():
        drain(task("qwen3_moe", ROOT / name, replace(SETTINGS, groups=groups)))
    seen["backward"], seen["small"] = failing_backward(), without_room()
    steps = []
    drain(task("olmoe", ROOT / "both"), steps.append)
    seen["again"] = [step.phase for step in steps]
    seen["share"] = share_of("olmoe")
    steps = []
    weights = StatsStore(ROOT / "weights")
    drain(weight_statistics(load_model_index(str(ROOT / "olmoe")), weights), steps.append)
    seen["weights"] = sorted({step.phase for step in steps}), len(weights.runs())
    seen["alone"] = refused(lambda: drain(processes.first_alone(failing())))
    stop_after(5, ROOT / "stopped")
    stop_after(5, ROOT / "continued")
    steps = []
    drain(task("olmoe", ROOT / "continued"), steps.append)
    seen["continued"] = steps[1].note
    seen["broken"] = [
        refused(lambda layer=layer: drain(task(f"broken-{layer}", ROOT / "broken")))
        for layer in (0, 2)
    ]
    other = sequences("other" if processes.rank else "rows")
    model, store = load_model_index(str(ROOT / "olmoe")), StatsStore(ROOT / "differ")
    seen["differ"] = refused(lambda: drain(calibrate(model, other, SETTINGS, store)))
    (ROOT / f"seen-{processes.rank}.json").write_text(json.dumps(seen))


main()
