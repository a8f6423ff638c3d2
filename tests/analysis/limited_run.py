"""Run by test_blocks.py: a model measured layer by layer in little address space.

Calibration, evaluation, repair and the norms of weights; it prints the results of all but the
first.

Arguments: folder of a small model, of the large one, of the statistics; bytes above what a run of
the small one took (0: no limit); experts at once that do not fit, of which it prints the refusal
(0: none is tried).
"""

import resource
import sys
from pathlib import Path

import psutil
import torch

from analysis.calibration.loading import CalibrationSettings, Placement
from analysis.calibration.run import calibrate
from analysis.calibration.weights import measure_weights
from analysis.drain import drain
from analysis.errors import CheckpointError
from analysis.model.opening import load_model_index
from analysis.stats.store import StatsStore
from builders.tokens import answers
from pruning.engine.run import Evaluations, run_evaluations
from pruning.measures.drawn_samples import DrawnSamples
from pruning.plan.plan import PruningPlan, fit_plan, keep_all, model_ref
from pruning.records.evaluation import EvaluationStore
from pruning.records.repair import RepairStore
from pruning.repair.run import repair_plan

torch.set_num_threads(1)
WINDOWS = 128 << 20  # what two threads map at once, and their stacks; less than the experts take


def run(model: Path, stats: Path, at_once: int = 0) -> None:
    described = load_model_index(str(model))
    place = Placement(stream_layers=True, experts_at_once=at_once)
    settings = CalibrationSettings(seq_len=16, batch_size=2, device="cpu", placement=place)
    sequences = answers((16, 11, 16, 7))
    drain(calibrate(described, sequences, settings, StatsStore(stats)))
    half = {layer.index: tuple(range(0, layer.num_experts, 2)) for layer in described.layers}
    plans = [keep_all(described), PruningPlan(model_ref(described), half)]
    drawn = [DrawnSamples(sequences, {"seed": 42, "drawn": "some"})]
    store = EvaluationStore([stats / "evaluations"])
    asked = Evaluations(described, plans, drawn, ("nll",), settings, store)
    for record in drain(run_evaluations(asked)):
        print(record.plan_digest, dict(record.metrics))
    quarter = {layer.index: tuple(range(0, layer.num_experts, 4)) for layer in described.layers}
    plan = fit_plan(PruningPlan(model_ref(described), quarter), described)
    repair = drain(repair_plan(described, plan, [sequences], settings, RepairStore([stats])))
    print([layer.model_dump() for layer in repair.layers], repair.files)


def weigh(model: Path) -> None:
    table = drain(measure_weights(load_model_index(str(model))))
    print(float(table["l1"].sum()), len(table))


def allow(room: int) -> None:
    """So much more address space."""
    limit = psutil.Process().memory_info().vms + room
    resource.setrlimit(resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))


def main() -> None:
    small, large, stats = map(Path, sys.argv[1:4])
    room, too_many = map(int, sys.argv[4:])
    run(small, stats / "small")
    weigh(small)
    if room:
        allow(room)
    run(large, stats / "large")
    if too_many:
        try:
            run(large, stats / "refused", too_many)
        except CheckpointError as error:
            print("refused:", error)
    if room:
        allow(WINDOWS)
    weigh(large)


if __name__ == "__main__":
    main()
