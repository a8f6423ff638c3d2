"""Run by test_evaluation_runs.py: evaluations by two processes, each with a store of its own."""

import json
import sys
from dataclasses import replace
from pathlib import Path

import torch
from nonuniform_cases import keeps_of, plan_of

from analysis.calibration.distributed import join
from analysis.calibration.loading import CalibrationSettings
from analysis.drain import drain
from analysis.errors import UserError
from analysis.model.opening import load_model_index
from builders.tokens import answers
from families.configs import BY_NAME
from pruning.engine.run import Evaluations, run_evaluations
from pruning.measures.drawn_samples import DrawnSamples
from pruning.plan.plan import keep_all
from pruning.records.evaluation import EvaluationStore

DENSE_FIRST = "exaone_moe-groups"
SETTINGS = CalibrationSettings(seq_len=12, batch_size=1, dtype="float32", device="cpu")


def draws(*lengths):
    return [DrawnSamples(answers(some), {"seed": 42, "drawn": "some"}) for some in lengths]


def many(root, store, name="mixtral"):
    """Several measures of several plans of a case on two corpora."""
    model, case = load_model_index(str(root / name)), BY_NAME[name]
    plan = plan_of(model, case, keeps_of(case))
    plans = [plan, keep_all(model), replace(plan, bits="4")]
    texts = draws((9, 5, 12, 7), (3, 8))
    records = EvaluationStore([root / store])
    return Evaluations(model, plans, texts, ("esap", "sap", "kl", "nll"), SETTINGS, records)


def outcomes(work):
    """What was measured, by corpus and plan, as JSON."""
    records = drain(run_evaluations(work))
    return [
        [
            record.plan_digest,
            record.corpus["digest"],
            str(dict(record.metrics)),
            str(dict(record.full)),
        ]
        for record in records
    ]


def evaluate(root, store, lengths=(9, 5, 12), name="mixtral"):
    """Phases and losses of a model in batches of one, or why it is refused."""
    model, steps = load_model_index(str(root / name)), []
    records = EvaluationStore([root / store])
    work = Evaluations(model, [keep_all(model)], draws(lengths), ("nll",), SETTINGS, records)
    try:
        (record,) = drain(run_evaluations(work), steps.append)
    except UserError as error:
        return f"{type(error).__name__}: {error}"
    return sorted({step.phase for step in steps}), record.metrics["nll"].mean


def stores(root, rank):
    """Evaluations of processes whose stores hold different records."""
    return {
        "new": evaluate(root, "first" if rank == 0 else "empty"),
        "known": evaluate(root, "first" if rank == 0 else "empty"),
        "elsewhere": evaluate(root, "none" if rank == 0 else "first"),
        "differ": evaluate(root, "first", (9, 5, 12) if rank == 0 else (9, 5, 11)),
        "many": outcomes(many(root, "many" if rank == 0 else "empty")),
    }


def edges(root, rank):
    """Evaluations with hardly anything to share, or that fail on the way."""
    store = "edges" if rank == 0 else "empty"
    return {
        "dense": outcomes(many(root, store, DENSE_FIRST)),
        "single": evaluate(root, store, (9,)),
        "one layer": evaluate(root, store, name="one-layer"),
        "undefined": evaluate(root, store, name="undefined"),
    }


def main():
    torch.set_num_threads(1)
    root, rank = Path(sys.argv[1]), join().rank
    seen = {"stores": stores, "edges": edges}[sys.argv[2]](root, rank)
    (root / f"seen-{rank}.json").write_text(json.dumps(seen))


if __name__ == "__main__":
    main()
