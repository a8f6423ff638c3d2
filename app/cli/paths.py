"""The command on trajectories: paths."""

from collections.abc import Sequence
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from app.cli import options
from app.cli.derive import command
from app.cli.files import write_csv
from app.cli.say import say_plan, say_sources
from app.console import counted, out
from pruning.requests.base import Option
from pruning.requests.paths import PathsRequest

if TYPE_CHECKING:
    from analysis.stats.samples import SampleStats
    from analysis.stats.store import Run
    from pruning.plan import PruningPlan
    from pruning.trajectory_plan import PathPlan


@command(PathsRequest)
def paths(
    request: PathsRequest,
    *,
    out_file: options.Out = Path("plan.json"),
    table: Annotated[
        Path | None, Option("Also write how many samples need each expert, as CSV.")
    ] = None,
) -> None:
    """Keep the experts on the heaviest paths through the layers (MoE Pathfinder); writes plan.json.

    Needs statistics of samples: calibrate with --groups routed,dense.
    """
    from analysis.model import load_model_index
    from analysis.ranking.trajectory import Weighing, follow
    from analysis.stats.choose import sample_runs
    from analysis.stats.store import stats_store
    from pruning.budget import sparsity_budget
    from pruning.schedules import Spending
    from pruning.trajectory_plan import Cut, budget_plan, union_plan

    if request.top_m is None and request.sparsity is None:
        raise typer.BadParameter("give --top-m or --sparsity, or both")
    weighing = Weighing(request.weights, request.transitions)
    cut = Cut(request.schedule, request.top_m)
    model = load_model_index(request.model, revision=request.revision)
    runs = sample_runs(stats_store(request.stats_dir), model, request.corpora, request.runs)
    stats = _stats(runs, request.clusters)
    if request.sparsity is not None:
        spending = Spending(model.layers, sparsity_budget(model.layers, request.sparsity))
        made = budget_plan(model, stats, spending, cut, weighing)
    else:
        made = union_plan(model, stats, cast("int", request.top_m), weighing)
    plan = _made_from(made.plan, runs, request.clusters)
    plan.save(out_file)
    say_plan(model, plan, out_file)
    if table is not None:
        write_csv(follow(stats, made.count, weighing).table(made.count), table)
    _say_paths(made, stats)
    say_sources(runs)


def _say_paths(made: "PathPlan", stats: "SampleStats") -> None:
    there_are = prod(stats.grid.counts)
    followed = (
        f"all {there_are:,} paths"
        if made.count >= there_are
        else f"the first {counted(made.count, 'path')}"
    )
    out.print(
        f"{made.union} experts lie on {followed} of {stats.num_samples} samples", markup=False
    )


def _made_from(plan: "PruningPlan", runs: "Sequence[Run]", clusters: int | None) -> "PruningPlan":
    """The plan with the names of what was read."""
    chosen = {"clusters": clusters} if clusters else {}
    read = replace(
        plan.provenance,
        corpora=tuple(each.manifest.corpus for each in runs),
        runs=tuple(each.manifest.run_id for each in runs),
        schedule_parameters={**plan.provenance.schedule_parameters, **chosen},
    )
    return replace(plan, provenance=read)


def _stats(runs: "Sequence[Run]", clusters: int | None) -> "SampleStats":
    """The samples of all runs together, or the representative ones of each."""
    from analysis.ranking.trajectory import representative_samples
    from analysis.stats.samples import joined_stats
    from analysis.stats.store import load_sample_stats

    stats = [load_sample_stats(each) for each in runs]
    if clusters is not None:
        stats = [representative_samples(each, clusters) for each in stats]
    return joined_stats(stats)
