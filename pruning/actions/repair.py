"""Repair: the kept experts refitted to take over part of what a plan removes."""

from dataclasses import replace
from typing import Final

from analysis.model.opening import load_model_index
from analysis.numbers.words import time_in_words
from analysis.stats.rates import expected_seconds
from pruning.actions.action import Action, Call, Note, Outcome, Table
from pruning.actions.expected import by_what
from pruning.plan.plan import fit_plan
from pruning.plan.plan_file import plan_from_dict
from pruning.plan.sizes import format_bytes
from pruning.records.repair import RepairRecord
from pruning.requests.following import evaluate_command
from pruning.requests.repair import RepairRequest
from pruning.tasks import Steps
from pruning.tasks.memory import item_bytes, python_memory
from pruning.tasks.probing import probing, way_of
from pruning.tasks.repair import estimate_repair_run, repair_run


def _tell(call: Call[RepairRequest], record: RepairRecord) -> Outcome:
    """What layers lack after it, and the plan with its repair."""
    request = call.request
    model = load_model_index(request.model, revision=request.revision)
    plan = fit_plan(plan_from_dict(request.plan), model)
    repaired = replace(plan, repair=record.reference)
    fitted = [layer for layer in record.layers if layer.damping is not None]
    plans = {**dict.fromkeys(call.plans, plan), call.out: repaired}
    names = ", ".join(dict.fromkeys(corpus.name for corpus in record.corpora))
    alone = "" if len(record.corpora) > 1 else " alone; name several --corpus to help them all"
    return Outcome(
        f"{len(fitted)} of {len(record.layers)} layers refitted on "
        f"{record.reference.tokens:,} tokens of {names}",
        {"repair": record.record_id, "layers": len(fitted)},
        (
            _layers(record),
            Note(
                f"Fitted on {names}{alone}. On other text it may help less, or harm: evaluate on "
                "each."
            ),
        ),
        (evaluate_command(request, model, plans),),
        repaired,
    )


def _layers(record: RepairRecord) -> Table:
    rows = []
    for layer in record.layers:
        error = min(layer.held_out.values(), default=None)
        rows.append(
            (
                layer.layer,
                "nothing gained" if layer.damping is None else f"{layer.damping:g}",
                "" if error is None else f"{error:.1%}",
                "" if layer.rounding is None else f"{layer.rounding:.1e}",
            )
        )
    columns = ("layer", "damping", "squared error left, held out", "by rounding")
    return Table(f"What layers lack after {record.record_id}", columns, rows)


def _cost(call: Call[RepairRequest]) -> Steps[Outcome]:
    """The tokens, memory and time of a repair."""
    cost = yield from estimate_repair_run(call.request)
    taken = cost.memory
    model, dtype, device = way_of(call.request)
    memory = python_memory(item_bytes(model, dtype), device) + taken.total
    parts = [f"{cost.tokens:,} tokens", f"about {format_bytes(memory)} of memory"]
    if taken.at_once:
        parts.append(f"{taken.at_once} of a layer's experts at once, each read twice")
    if taken.on_disk:
        parts.append(f"{format_bytes(taken.on_disk)} on disk meanwhile")
    yield from probing(cost.whole, model, dtype, device)
    seconds = expected_seconds(cost.whole)
    parts.append(f"about {time_in_words(seconds)}{by_what()}")
    facts = {"tokens": cost.tokens, "memory_bytes": memory, "seconds": seconds}
    return Outcome(
        f"{', '.join(parts)}; nothing was written",
        facts | {"disk_bytes": taken.on_disk, "experts_at_once": taken.at_once},
        following=(call.request.command([str(path) for path in call.plans]),),
    )


ACTION: Final = Action(
    RepairRequest,
    repair_run,
    _tell,
    "repair demo --plan plan.json --tokens 4096",
    "repair of {about}",
    "plan",
    _cost,
)
