"""Evaluate: how plans differ from the original model on held-out text."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Final

from analysis.calibration.weights import check_measurable
from analysis.errors import UnsupportedModelError
from analysis.model.moe_model import MoEModel
from analysis.model.opening import load_model_index
from analysis.numbers.words import counted
from analysis.stats.store import stats_store
from pruning.actions.action import Action, Call, Note, Outcome
from pruning.actions.candidates import candidate_names, plans_by_file, plans_by_name
from pruning.actions.evaluation_tables import evaluation_tables, loss_increase, loss_increases
from pruning.actions.expected import expected_cost
from pruning.measures.result import RIGHT
from pruning.plan.plan import keep_all
from pruning.records.evaluation import EvaluationRecord, EvaluationStore, result_json
from pruning.records.quality import stored_losses
from pruning.records.verdict import random_warnings
from pruning.requests.evaluation import EvaluateRequest
from pruning.requests.following import (
    calibrate_command,
    export_command,
    plan_command,
    usual_budget,
)
from pruning.spec.base import option_words
from pruning.tasks.evaluation import evaluate_run
from pruning.tasks.memory import evaluation_memory


def _tell(call: Call[EvaluateRequest], records: Sequence[EvaluationRecord]) -> Outcome:
    """What was measured of each plan, and the command that exports the best."""
    request = call.request
    model = load_model_index(request.model, revision=request.revision)
    plans = plans_by_file(call, request.plans, model)
    facts = [record.plan for record in records[: len(records) // len(request.corpora)]]
    candidates = candidate_names(
        plans_by_name(plans) or {"original": keep_all(model)},
        facts,
        model,
        repair=request.repair,
        bits=len(request.bits),
    )
    names = list(candidates)
    best, loss_words = _least_loss(records, names)
    following: tuple[str, ...] = ()
    by_layer = bool(plans) and facts[names.index(best)].differs_by_layer
    if model.family.allows_lists or not by_layer:  # else no export holds that
        best_file = call.plans[candidates[best]] if plans else None
        following = (_next_command(request, model, best_file),)
    store = EvaluationStore(stats_store(request.stats_dir).directories)
    losses = stored_losses(store, model.identity)
    warnings = random_warnings(dict(zip(names, records, strict=False)), losses)
    return Outcome(
        f"{counted(len(records), 'evaluation')}{loss_words}",
        {"evaluations": [_numbers(record) for record in records]},
        (*evaluation_tables(records, names * len(request.corpora)), *map(Note, warnings)),
        following,
        result_json(records),
    )


def _least_loss(records: Sequence[EvaluationRecord], names: Sequence[str]) -> tuple[str, str]:
    """The candidate that adds least to the loss over all corpora, else the first; and how much.

    `records` come by corpus and then by plan, of which these are the names.
    """
    increases = loss_increases(records, len(names))
    if not increases:
        return names[0], ""
    best = min(increases, key=lambda number: increases[number].mean)
    least = f"least by {names[best]}: " if len(increases) > 1 else ""
    return names[best], f", {least}{increases[best].words}"


def _next_command(request: EvaluateRequest, model: MoEModel, plan: Path | None) -> str:
    """The command that comes next: an export, or what makes a plan where none was evaluated."""
    if plan is None:
        try:
            check_measurable(model)
        except UnsupportedModelError:  # weights that are quantised rank nothing
            return calibrate_command(request, model)
        return plan_command(request, "aimer", (), usual_budget(model))
    words = ("--plan", str(plan), *option_words(request, only=("revision",)))
    return export_command(request.model, *words)


def _numbers(record: EvaluationRecord) -> dict[str, object]:
    """What an evaluation measured, for --json."""
    metrics = {name: asdict(metric) for name, metric in record.metrics.items()}
    removed = {"corpus": record.corpus["name"], "removed": record.plan.removed}
    increase = {"loss_increase": loss_increase(record)}
    full = {f"original_{name}": asdict(record.full[name]) for name in metrics if name == RIGHT}
    return {**removed, "tokens": record.num_tokens, **metrics, **full, **increase}


ACTION: Final = Action(
    EvaluateRequest,
    evaluate_run,
    _tell,
    "evaluate demo --plan plan.json --corpus demo-math --samples 8",
    "evaluation of {about}",
    "evaluate.own",
    cost=expected_cost(evaluate_run, evaluation_memory),
)
