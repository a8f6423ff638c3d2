"""The command on trajectories: paths."""

from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Annotated, cast

import typer

from analysis.criteria.pathfinder import PATHFINDER
from analysis.model import MoEModel, load_model_index
from analysis.ranking.trajectory import Weighing, follow, representative_samples
from analysis.stats.choose import notes_on_others, sample_runs
from analysis.stats.samples import joined_stats
from analysis.stats.store import load_sample_stats, stats_store
from app.cli import options
from app.cli.derive import command
from app.cli.files import save_plan, write_csv
from app.cli.say import commands_after_plan, say_plan, say_sources
from app.console import counted, note
from pruning.budget import Budget, SizeTarget, even_budget, size_budget, sparsity_budget
from pruning.requests.base import Option
from pruning.requests.ranking import PathsRequest
from pruning.schedules import Spending
from pruning.trajectory_plan import Cut, budget_plan, union_plan


@command(PathsRequest)
def paths(
    request: PathsRequest,
    *,
    out_file: options.Out = Path("plan.json"),
    table: Annotated[
        Path | None, Option("Also write how many samples need each expert, as CSV.", file="new")
    ] = None,
    force: options.Force = False,
) -> None:
    """Keep the experts on the heaviest paths through the layers (MoE Pathfinder); writes plan.json.

    Needs statistics of samples: calibrate with --groups routed,dense.
    """
    if request.top_m is None and request.sparsity is None and request.shrink is None:
        raise typer.BadParameter("give --top-m or --sparsity, or both; or --shrink")
    if request.sparsity is not None and request.shrink is not None:
        raise typer.BadParameter("give --sparsity or --shrink, not both")
    weighing = Weighing(request.weights, request.transitions)
    model = load_model_index(request.model, revision=request.revision)
    store = stats_store(request.stats_dir)
    runs = sample_runs(store, model, request.corpora, request.runs)
    each = [load_sample_stats(run) for run in runs]
    if request.clusters is not None:
        each = [representative_samples(samples, request.clusters) for samples in each]
    stats = joined_stats(each)
    if (budget := _budget(request, model)) is not None:
        spending = Spending(model.layers, budget)
        cut = Cut(request.schedule, request.top_m)
        made = budget_plan(model, stats, spending, cut, weighing)
    else:
        made = union_plan(model, stats, cast("int", request.top_m), weighing)
    provenance = made.plan.provenance
    chosen = {"clusters": request.clusters} if request.clusters else {}
    read = replace(
        provenance,
        corpora=tuple(run.manifest.corpus for run in runs),
        runs=tuple(run.manifest.run_id for run in runs),
        schedule_parameters={**provenance.schedule_parameters, **chosen},
    )
    plan = replace(made.plan, provenance=read)
    save_plan(plan, out_file, force=force)
    if table is not None:
        write_csv(follow(stats, made.count, weighing).table(made.count), table)
    there_are = prod(stats.grid.counts)
    followed = f"the first {counted(made.count, 'path')}"
    if made.count >= there_are:
        followed = f"all {there_are:,} paths"
    note(f"{made.union} experts lie on {followed} of {stats.num_samples} samples")
    others = () if request.runs else store.of_model(model.identity, "routed")
    say_sources(runs, notes_on_others(runs, others, PATHFINDER))
    say_plan(model, plan, out_file, *commands_after_plan(request, model, out_file))


def _budget(request: PathsRequest, model: MoEModel) -> Budget | None:
    """How many experts go; None where all that lie on the paths stay."""
    if request.sparsity is not None:
        return sparsity_budget(model.layers, request.sparsity)
    if request.shrink is None:
        return None
    target = SizeTarget("shrink", request.shrink)
    return (even_budget if request.schedule == "uniform" else size_budget)(model, target)
