"""The command on trajectories: paths."""

from collections.abc import Sequence
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Annotated, cast

import typer

from analysis.model import load_model_index
from analysis.ranking.trajectory import follow, representative_samples, weighing_of
from analysis.stats.choose import sample_runs
from analysis.stats.samples import SampleStats, joined_stats
from analysis.stats.store import Run, load_sample_stats
from app.commands import options
from app.commands.files import write_csv
from app.commands.plan import say_plan
from app.commands.rank import say_run
from app.console import counted, out
from app.settings import stats_store
from pruning.budget import sparsity_budget
from pruning.plan import PruningPlan, save_plan
from pruning.schedules import Spending
from pruning.trajectory_plan import Cut, PathPlan, budget_plan, union_plan


def paths(
    model: options.Model,
    top_m: Annotated[
        int | None,
        typer.Option(
            help="Paths of each sample: the plan is all that lies on them, or with --sparsity the "
            "budget cut from it."
        ),
    ] = None,
    sparsity: Annotated[
        str | None,
        typer.Option(
            help="Budget: fraction of experts removed, 0.5 or 50%; without --top-m, as many paths "
            "as it takes."
        ),
    ] = None,
    out_file: options.Out = Path("plan.json"),
    table: Annotated[
        Path | None, typer.Option(help="Also write how many samples need each expert, as CSV.")
    ] = None,
    weights: options.PathWeights = "both",
    transitions: options.Transitions = "paper",
    clusters: options.Clusters = None,
    schedule: Annotated[
        str, typer.Option(help="How a budget is spread: global, uniform, early, middle, late.")
    ] = "global",
    corpus: Annotated[
        list[str] | None,
        typer.Option("--corpus", help="Corpus whose samples are followed; repeatable."),
    ] = None,
    run: options.Runs = None,
    revision: options.Revision = None,
    stats_dir: options.StatsDir = None,
) -> None:
    """Keep the experts on the heaviest paths through the layers (MoE Pathfinder); writes plan.json.

    Needs statistics of samples: calibrate with --groups routed,dense.
    """
    if top_m is None and sparsity is None:
        raise typer.BadParameter("give --top-m or --sparsity, or both")
    weighing = weighing_of(weights, transitions)
    cut = Cut(schedule, top_m)
    described = load_model_index(model, revision=revision)
    runs = sample_runs(stats_store(stats_dir), described, tuple(corpus or ()), tuple(run or ()))
    stats = _stats(runs, clusters)
    if sparsity is not None:
        spending = Spending(described.layers, sparsity_budget(described.layers, sparsity))
        made = budget_plan(described, stats, spending, cut, weighing)
    else:
        made = union_plan(described, stats, cast("int", top_m), weighing)
    plan = _made_from(made.plan, runs, clusters)
    save_plan(plan, out_file)
    say_plan(described, plan, out_file)
    if table is not None:
        write_csv(follow(stats, made.count, weighing).table(made.count), table)
    _say_paths(made, stats, runs)


def _say_paths(made: PathPlan, stats: SampleStats, runs: Sequence[Run]) -> None:
    there_are = prod(stats.grid.counts)
    followed = (
        f"all {there_are:,} paths"
        if made.count >= there_are
        else f"the first {counted(made.count, 'path')}"
    )
    out.print(
        f"{made.union} experts lie on {followed} of {stats.num_samples} samples", markup=False
    )
    for each in runs:
        say_run(each)


def _made_from(plan: PruningPlan, runs: Sequence[Run], clusters: int | None) -> PruningPlan:
    """The plan with the names of what was read."""
    chosen = {"clusters": clusters} if clusters else {}
    read = replace(
        plan.provenance,
        corpora=tuple(each.manifest.corpus for each in runs),
        runs=tuple(each.manifest.run_id for each in runs),
        schedule_parameters={**plan.provenance.schedule_parameters, **chosen},
    )
    return replace(plan, provenance=read)


def _stats(runs: Sequence[Run], clusters: int | None) -> SampleStats:
    """The samples of all runs together, or the representative ones of each."""
    stats = [load_sample_stats(each) for each in runs]
    if clusters is not None:
        stats = [representative_samples(each, clusters) for each in stats]
    return joined_stats(stats)
