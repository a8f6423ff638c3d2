"""Commands that look into what pruning changes: variance, bins, ask."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from app.cli import options
from app.cli.derive import command
from app.cli.files import check_ending, write_table
from app.console import follow, out, show_frame
from pruning.requests.base import Option
from pruning.requests.evaluation import AskRequest, BinsRequest
from pruning.requests.model import ModelRequest
from pruning.requests.variance import VarianceRequest

if TYPE_CHECKING:
    import pandas as pd

Plans = tuple[Annotated[options.Plan, Option("plan.json to compare; repeatable.")], ...]


def _plans_of(request: ModelRequest, paths: Sequence[Path]) -> dict[str, tuple[object, ...]]:
    """Plans and their names, those of the files; equal names get numbers."""
    from analysis.model import load_model_index
    from pruning.plan import load_plan

    model = load_model_index(request.model, revision=request.revision)
    plans: dict[str, dict[str, object]] = {}
    for number, path in enumerate(paths, 1):
        name = path.name if path.name not in plans else f"{path.name} ({number})"
        plans[name] = load_plan(path, model=model).to_dict()
    return {"plans": tuple(plans.values()), "names": tuple(plans)}


@command(VarianceRequest)
def variance(
    request: VarianceRequest,
    *,
    plan: Plans = (),
    out_file: options.OutTable = Path("variance.csv"),
) -> None:
    """Variance of hidden states after each layer, full model against pruned, on 4096 tokens."""
    from pruning.evaluate.variance_record import variance_table
    from pruning.tasks.variance import variance_run

    check_ending(out_file)
    asked = request.into(VarianceRequest, **_plans_of(request, plan))
    table = variance_table(follow(variance_run(asked)))
    wide = table.pivot_table(index="layer", columns="model", values="variance", sort=False)
    show_frame("variance of hidden states", wide.reset_index())
    write_table(table, out_file)
    out.print(f"{out_file}: {table['num_tokens'].iloc[0]} tokens", markup=False)


@command(BinsRequest)
def bins(request: BinsRequest, *, out_file: options.OutTable = Path("bins.csv")) -> None:
    """Score against true loss: experts or neurons in bins by saliency, each bin removed alone."""
    from pruning.evaluate.bins import rank_agreement
    from pruning.tasks.bins import bins_run

    check_ending(out_file)
    table = follow(bins_run(request)).table
    _show_bins(table, request.order)
    write_table(table, out_file)
    out.print(
        f"{out_file}: rank correlation of saliency and loss {rank_agreement(table):.2f} "
        "(1: the more salient, the more it costs)",
        markup=False,
    )


def _show_bins(table: "pd.DataFrame", order: str) -> None:
    shown = table[["bin", "removed", "saliency", "share", "loss_change", "low", "high"]]
    first = "least salient first" if order == "saliency" else "by place"
    show_frame(f"each bin removed alone, {first}", shown)


@command(AskRequest)
def ask(request: AskRequest, *, plan: Plans = ()) -> None:
    """Answers of the full model and of pruned ones to a prompt, side by side."""
    from rich.table import Table
    from rich.text import Text

    from pruning.tasks.probe import ask_run

    answers = follow(ask_run(request.into(AskRequest, **_plans_of(request, plan))))
    table = Table(show_edge=False, pad_edge=False)
    for answer in answers:
        table.add_column(Text(answer.name), overflow="fold")
    table.add_row(*(Text(answer.text.strip() or "(nothing)") for answer in answers))
    out.print(table)
    for answer in answers[1:]:
        agreed = f"the first {answer.agreed} of {len(answer.ids)} tokens as the full model"
        out.print(f"{answer.name}: {agreed}, {answer.seconds:.1f} s", markup=False)
