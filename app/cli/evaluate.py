"""The command that measures how a pruned model differs from the full one: evaluate."""

from pathlib import Path
from typing import Annotated

from analysis.model import load_model_index
from app.cli import options
from app.cli.derive import command
from app.cli.files import check_place, write_result
from app.cli.say import show_records
from app.console import counted, follow, out
from pruning.evaluate.record import results_of
from pruning.plan import load_plan
from pruning.requests.base import Option
from pruning.requests.evaluation import EvaluateRequest
from pruning.tasks.evaluation import evaluate_run

_PLAN_HELP = "plan.json to evaluate; repeatable. Default: the unpruned model."


@command(EvaluateRequest)
def evaluate(
    request: EvaluateRequest,
    *,
    plan: tuple[Annotated[options.Plan, Option(_PLAN_HELP)], ...] = (),
    out_file: options.Out = Path("result.json"),
) -> None:
    """Measure how pruned models differ from the full one on held-out text."""
    check_place(out_file)
    model = load_model_index(request.model, revision=request.revision)
    plans = tuple(load_plan(path, model=model).to_dict() for path in plan)
    records = follow(evaluate_run(request.into(EvaluateRequest, plans=plans)))
    names = [path.name for path in plan] or ["unpruned"]
    show_records(records, names * len(request.corpora))
    write_result(out_file, results_of(records))
    out.print(f"{out_file}: {counted(len(records), 'evaluation')}")
