"""Commands that measure how pruned models differ from the original: evaluate, sweep."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Literal, get_args

from analysis.criteria.weight_based import RANDOM
from analysis.lazy import pd
from analysis.model import load_model_index
from app.cli import options
from app.cli.derive import command
from app.cli.files import write_result, write_table
from app.cli.say import loss_increase, plan_command, pruned_name, show_records
from app.console import counted, finish, follow, out, show_table, small
from pruning.evaluate.quality import AddedLoss, is_random
from pruning.evaluate.record import EvaluationRecord, evaluation_table, results_of
from pruning.evaluate.result import MEASURES
from pruning.plan import load_plan
from pruning.requests.base import Option, command_line, option_words
from pruning.requests.evaluation import EvaluateRequest, SweepRequest
from pruning.tasks.evaluation import evaluate_run, sweep_run

_PLAN_HELP = "plan.json to evaluate; repeatable. Default: the unpruned model."


@command(EvaluateRequest)
def evaluate(
    request: EvaluateRequest,
    *,
    plan: tuple[Annotated[options.Plan, Option(_PLAN_HELP)], ...] = (),
    out_file: options.Out = Path("result.json"),
) -> None:
    """Measure how pruned models differ from the original on held-out text."""
    model = load_model_index(request.model, revision=request.revision)
    plans = tuple(load_plan(path, model=model).to_dict() for path in plan)
    records = follow(evaluate_run(request.into(EvaluateRequest, plans=plans)))
    names = [path.name for path in plan] or ["unpruned"]
    show_records(records, names * len(request.corpora))
    write_result(out_file, results_of(records))
    finish(
        f"{out_file}: {counted(len(records), 'evaluation')}{_least_loss(records, names)}",
        {"file": str(out_file), "evaluations": [_numbers(each) for each in records]},
        _after(request, plan),
    )


def _least_loss(records: Sequence[EvaluationRecord], names: Sequence[str]) -> str:
    """What the plan adds to the loss over all corpora; of several plans, the one that adds least.

    `records` come by corpus and then by plan, of which these are the names.
    """
    corpora = list(dict.fromkeys(record.corpus["name"] for record in records))
    found = {}
    for number, name in enumerate(names):
        mine = zip(corpora, records[number :: len(names)], strict=True)
        added = {each: more for each, one in mine if (more := loss_increase(one)) is not None}
        if len(added) == len(corpora):
            found[name] = AddedLoss(added)
    if not found:
        return ""
    best = min(found, key=lambda name: found[name].mean)
    return f", {f'least by {best}: ' if len(found) > 1 else ''}{found[best].words}"


def _after(request: EvaluateRequest, plans: Sequence[Path]) -> str:
    """The command that comes next: an export, or a plan where none was evaluated."""
    if not plans:
        return plan_command(request, "aimer", ())
    own = ("--plan", str(plans[0]), *option_words(request, only=("revision",)))
    return command_line("export", request.model, pruned_name(request.model), *own)


def _numbers(record: EvaluationRecord) -> dict[str, object]:
    """What an evaluation measured, for --json."""
    metrics = {name: asdict(metric) for name, metric in record.metrics.items()}
    removed = {"corpus": record.corpus["name"], "removed": record.plan.removed}
    increase = {"loss_increase": loss_increase(record)}
    return {**removed, "tokens": record.num_tokens, **metrics, **increase}


Against = Literal["removed", "bytes", "active_params", "expert_flops"]
AGAINST: tuple[Against, ...] = get_args(Against)


@command(SweepRequest)
def sweep(
    request: SweepRequest,
    *,
    out_file: options.OutTable = Path("sweep.csv"),
    plot: Annotated[
        options.OutFigure | None, Option("Draw the first measure too: .html, .svg, .png, .pdf.")
    ] = None,
    against: Annotated[
        Against, Option(f"What --plot has below: {', '.join(AGAINST)}.")
    ] = "removed",
) -> None:
    """Evaluate every criterion at every sparsity, with one loaded model; writes a tidy table."""
    records = follow(sweep_run(request))
    table = evaluation_table(records)
    show_sweep(table)
    write_table(table, out_file)
    if plot:
        draw(table, next(iter(records[0].metrics)), against, plot)
    of = counted(len(records), "evaluation")
    finish(
        f"{out_file}: {len(table)} rows of {of}",
        {"file": str(out_file), "rows": len(table), "evaluations": len(records)},
        command_line("report", request.model, *option_words(request, only=("revision",))),
    )


def draw(table: "pd.DataFrame", measure: str, against: str, path: Path) -> None:
    """Write the figure of one measure, and say in a sentence what it shows."""
    from app.charts.evaluation_curves import curves_figure, describe
    from app.charts.evaluations import pool_draws
    from app.charts.files import write_figure

    names = [RANDOM.name if is_random(name) else name for name in table["criterion"]]
    rows = pool_draws(table.assign(series=names, way="")[table["measure"] == measure])
    known = MEASURES[measure]
    write_figure(curves_figure(rows, label=known.axis, against=against), path)
    text = describe(rows, label=known.label, higher_is_better=known.higher_is_better)
    out.print(f"{path}: {text}")


def show_sweep(table: "pd.DataFrame") -> None:
    """Print one table for each corpus: a row for each plan, a column for each measure."""
    measured = [name for name in MEASURES if name in set(table["measure"])]
    labels = [MEASURES[name].label for name in measured]
    for corpus, rows in table.groupby("corpus", sort=False):
        means = rows.pivot_table(index="evaluation", columns="measure", values="mean")
        shown = [
            (
                plan["criterion"] or "unpruned",
                f"{plan['removed']:.1%}",
                *(small(means[name][plan["evaluation"]]) for name in measured),
            )
            for plan in rows.drop_duplicates("evaluation").to_dict("records")
        ]
        show_table(str(corpus), ("criterion", "removed", *labels), shown)
