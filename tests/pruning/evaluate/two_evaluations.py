"""Run by test_evaluation_runs.py: evaluations by two processes, each with a store of its own."""

import json
import sys
from pathlib import Path

import torch

from analysis.calibration.distributed import join
from analysis.calibration.loading import CalibrationSettings
from analysis.drain import drain
from analysis.errors import UserError
from analysis.model.opening import load_model_index
from builders.tokens import answers
from pruning.engine.run import Evaluations, run_evaluations
from pruning.measures.drawn_samples import DrawnSamples
from pruning.plan.plan import keep_all
from pruning.records.evaluation import EvaluationStore

torch.set_num_threads(1)
ROOT, RANK = Path(sys.argv[1]), join().rank


def evaluate(store, lengths=(9, 5, 12)):
    """Phases and losses of the model in batches of one, or why it is refused."""
    model, steps = load_model_index(str(ROOT / "model")), []
    draws = [DrawnSamples(answers(lengths), {"seed": 42, "drawn": "some"})]
    settings = CalibrationSettings(seq_len=12, batch_size=1, dtype="float32", device="cpu")
    records = EvaluationStore([ROOT / store])
    work = Evaluations(model, [keep_all(model)], draws, ("nll",), settings, records)
    try:
        (record,) = drain(run_evaluations(work), steps.append)
    except UserError as error:
        return f"{type(error).__name__}: {error}"
    return sorted({step.phase for step in steps}), record.metrics["nll"].mean


seen = {
    "new": evaluate("first" if RANK == 0 else "empty"),
    "known": evaluate("first" if RANK == 0 else "empty"),
    "elsewhere": evaluate("none" if RANK == 0 else "first"),
    "differ": evaluate("first", (9, 5, 12) if RANK == 0 else (9, 5, 11)),
}
(ROOT / f"seen-{RANK}.json").write_text(json.dumps(seen))
