"""Run by test_shared_runs.py: candidates and curves of two processes that share the layers."""

import json
import sys
from pathlib import Path

import torch
from curve_cases import CASE, points_at, record_of
from masked_cases import candidates_of, plans_of, sequences

from analysis.calibration.distributed import join
from analysis.calibration.loading import CalibrationSettings
from analysis.drain import drain
from analysis.errors import StatsError, UserError
from analysis.model.opening import load_model_index
from pruning.engine.candidate import MeasureSettings
from pruning.measurements.block import SampleSet
from pruning.measures.points import MEASURES
from pruning.measures.samples import make_samples
from pruning.records.sensitivity import SensitivityStore
from pruning.search.ahead import ahead_of
from pruning.search.fitness import RunFitness
from pruning.search.sensitivity import Measuring
from pruning.search.shared_runs import SharedRuns, load_search_share, shared_subject

ROOT = Path(sys.argv[1])
RANK = join().rank
SETTINGS = CalibrationSettings(seq_len=12, batch_size=2, dtype="float32", device="cpu")


def subject(plan_of=None):
    model = load_model_index(str(ROOT / "model"))
    share = drain(load_search_share(model, sequences(), SETTINGS, [1.0] * model.depth))
    plan_of = plan_of or plans_of(CASE)
    return drain(shared_subject(model, share, make_samples(sequences(), 2), plan_of))


def found(whole, room, held):
    """Sums, counts and layers of each candidate on each batch, and layers whose inputs are kept."""
    candidates = candidates_of(CASE)
    runs = SharedRuns(whole, MeasureSettings(("esap",)), room, 2)
    fitness, values = RunFitness(runs, "esap"), []
    with fitness.open():
        for removed in ahead_of(candidates, fitness.begin, fitness.ahead):
            blocks = [fitness.block(removed, number) for number in range(fitness.num_blocks)]
            values.append([[b.sums.tolist(), b.counts.tolist(), b.layers] for b in blocks])
            fitness.hold(candidates[:held])
    kept = [inputs for blocks in runs._kept._inputs.values() for inputs in blocks.values()]
    layers = {at for inputs in kept for at, tensor in enumerate(inputs) if not tensor.is_meta}
    return values, sorted(layers), list(whole.share.layers)


def curves(whole, folder, wanted):
    """Measure points; the values of all that are wanted, and the layers that ran."""

    def load():
        yield from ()
        return SharedRuns(whole, MeasureSettings(MEASURES))

    # The second process sees another store.
    store = SensitivityStore([ROOT / (folder if RANK == 0 else "empty")])
    where = SampleSet("text", sequences().digest, "float32", 42)
    samples, plan_of = make_samples(sequences(), 2), whole.plan_of
    record = record_of(CASE)
    work = Measuring(store, record, samples, where, plan_of, load, processes=join())
    drain(work.measure(wanted))
    work.finish()
    return [work.points.values(point.removed, work.samples).tolist() for point in wanted], work


def refused(action):
    try:
        action()
    except UserError as error:
        return f"{type(error).__name__}: {error}"
    return "no error"


def full_disk(whole):
    """How a run ends whose first process cannot write the third point."""
    store, added = SensitivityStore, []

    class Full(store):
        @property
        def table(self):
            table = super().table

            def add(blocks, *, sync):
                added.append(blocks)
                if len(added) == 3:
                    raise StatsError("no room for points")

            table.add = add
            return table

    globals()["SensitivityStore"] = Full
    outcome = refused(lambda: curves(whole, "full", points_at(3)))
    globals()["SensitivityStore"] = store
    return outcome


def failing_plan():
    """How a run ends whose second process cannot make the plan of the third candidate."""
    make = plans_of(CASE)

    def plan_of(removed):
        if RANK and removed == candidates_of(CASE)[2]:
            raise UserError("no such plan")
        return make(removed)

    return refused(lambda: found(subject(plan_of), 1 << 30, 3))


def main():
    torch.set_num_threads(1)
    whole, points = subject(), points_at(3)
    count = len(candidates_of(CASE))
    seen = {
        "plenty": found(whole, 1 << 30, count),
        "little": found(whole, int(sys.argv[2]), 2),
        "none": found(whole, 0, 2),
    }
    seen["some"] = curves(whole, "curves", points[:4])[0]
    seen["points"], work = curves(whole, "curves", points)
    seen["known"] = len(SensitivityStore([ROOT / "curves"]).records()), work.layers
    seen["again"] = curves(whole, "curves", points)[1].layers
    seen["full"], seen["plan"] = full_disk(whole), failing_plan()
    (ROOT / f"seen-{RANK}.json").write_text(json.dumps(seen))


if __name__ == "__main__":
    main()
