"""Commands that look into what pruning changes: variance, bins, ask."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

from rich.table import Table

from analysis.model import load_model_index
from app.cli import options
from app.cli.derive import command
from app.cli.files import write_table
from app.cli.say import evaluate_command, plan_command
from app.console import finish, follow, out, show_frame
from pruning.evaluate.bins import rank_agreement
from pruning.evaluate.record import variance_table
from pruning.plan import load_plan
from pruning.requests.base import Option, repeated
from pruning.requests.evaluation import AskRequest, BinsRequest, VarianceRequest
from pruning.requests.model import ModelRequest
from pruning.tasks.probe import ask_run, bins_run, variance_run

Plans = tuple[Annotated[options.Plan, Option("plan.json to compare; repeatable.")], ...]


def _plans_of(request: ModelRequest, paths: Sequence[Path]) -> dict[str, tuple[object, ...]]:
    """Plans and their names, those of the files; equal names get numbers."""
    model = load_model_index(request.model, revision=request.revision)
    plans: dict[str, dict[str, object]] = {}
    for number, path in enumerate(paths, 1):
        name = path.name if path.name not in plans else f"{path.name} ({number})"
        plans[name] = load_plan(path, model=model).to_dict()
    return {"plans": tuple(plans.values()), "names": tuple(plans)}


@command(VarianceRequest)
def variance(
    request: VarianceRequest, *, plan: Plans = (), out_file: options.OutTable = Path("variance.csv")
) -> None:
    """Variance of hidden states after each layer, original against pruned, on 4096 tokens."""
    asked = request.into(VarianceRequest, **_plans_of(request, plan))
    table = variance_table(follow(variance_run(asked)))
    wide = table.pivot_table(index="layer", columns="model", values="variance", sort=False)
    show_frame("variance of hidden states", wide.reset_index())
    write_table(table, out_file)
    tokens, last = int(table["num_tokens"].iloc[0]), wide.iloc[-1]
    model = load_model_index(request.model, revision=request.revision)
    finish(
        f"{out_file}: {tokens:,} tokens; after the last layer "
        + ", ".join(f"{value:.4g} ({name})" for name, value in last.items()),
        {"file": str(out_file), "tokens": tokens, "last_layer": last.to_dict()},
        evaluate_command(request, model, repeated("--plan", map(str, plan)), request.corpora),
    )


@command(BinsRequest)
def bins(request: BinsRequest, *, out_file: options.OutTable = Path("bins.csv")) -> None:
    """Score against true loss: experts or neurons in bins by saliency, each bin removed alone."""
    table = follow(bins_run(request)).table
    first = "least salient first" if request.order == "saliency" else "by place"
    show_frame(f"each bin removed alone, {first}", table.drop(columns="pooled"))
    write_table(table, out_file)
    found = rank_agreement(table)
    budget = ("--granularity", "atomic", "--shrink", "40%")
    finish(
        f"{out_file}: rank correlation of saliency and loss {found:.2f} "
        "(1: the more salient, the more it costs)",
        {"file": str(out_file), "bins": len(table), "rank_correlation": found},
        plan_command(
            request,
            request.criterion,
            request.calibrated_on,
            *(budget if request.granularity == "atomic" else ()),
        ),
    )


@command(AskRequest)
def ask(request: AskRequest, *, plan: Plans = ()) -> None:
    """Answers of the original model and of pruned ones to a prompt, side by side."""
    answers = follow(ask_run(request.into(AskRequest, **_plans_of(request, plan))))
    table = Table(show_edge=False, pad_edge=False)
    for answer in answers:
        table.add_column(answer.name, overflow="fold")
    table.add_row(*(answer.text.strip() or "(nothing)" for answer in answers))
    out.print(table)
    words = [
        f"{answer.name}: the first {answer.agreed} of {len(answer.ids)} tokens as the original "
        f"model, {answer.seconds:.1f} s"
        for answer in answers[1:]
    ]
    model = load_model_index(request.model, revision=request.revision)
    finish(
        "\n".join(words) or f"{len(answers[0].ids)} tokens, {answers[0].seconds:.1f} s",
        {"answers": [asdict(answer) for answer in answers]},
        evaluate_command(request, model, repeated("--plan", map(str, plan))),
    )
