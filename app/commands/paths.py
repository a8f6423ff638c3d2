"""The command on trajectories: paths."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from analysis.choose import sample_runs
from analysis.errors import PlanError, unknown_name
from analysis.model import MoEModel, load_model_index
from analysis.samples import SampleStats, joined_samples, load_sample_stats, sample_stats
from analysis.stats import Grid
from analysis.store import Run
from analysis.trajectory import PARTS, Parts, follow
from app.commands import options
from app.commands.console import out
from app.commands.plan import say_plan
from app.commands.rank import Out, save_csv, say_run
from app.settings import stats_store
from pruning.budget import sparsity_budget
from pruning.plan import PruningPlan, save_plan
from pruning.schedules import Spending
from pruning.trajectory_plan import budget_plan, check_schedule, union_plan

_PARTS = ", ".join(PARTS)


def paths(
    model: options.Model,
    top_m: Annotated[
        int | None, typer.Option(help="Paths of each sample: the plan is all that lies on them.")
    ] = None,
    sparsity: Annotated[
        str | None, typer.Option(help="Budget: fraction of experts removed, 0.5 or 50%.")
    ] = None,
    out_file: Out = Path("plan.json"),
    table: Annotated[
        Path | None, typer.Option(help="Also write how many samples need each expert, as CSV.")
    ] = None,
    weights: Annotated[str, typer.Option(help=f"What weighs a path: {_PARTS}.")] = "both",
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
    if (top_m is None) == (sparsity is None):
        raise typer.BadParameter("give --top-m or --sparsity, one of them")
    parts = _parts(weights)
    check_schedule(schedule)
    described = load_model_index(model, revision=revision)
    runs = sample_runs(stats_store(stats_dir), described, tuple(corpus or ()), tuple(run or ()))
    stats = _stats(runs, described)
    if top_m is not None:
        made = union_plan(described, stats, top_m, parts)
    else:
        budget = sparsity_budget(described.layers, str(sparsity))
        spending = Spending(described.layers, budget)
        made = budget_plan(described, stats, spending, schedule, parts)
    plan = _made_from(made.plan, runs)
    save_plan(plan, out_file)
    say_plan(described, plan, out_file)
    if table is not None:
        save_csv(follow(stats, made.count, parts=parts).table(made.count), table)
    out.print(
        f"{made.union} experts lie on the first {made.count:,} path{'s' * (made.count != 1)} of "
        f"{stats.num_samples} samples",
        markup=False,
    )
    for each in runs:
        say_run(each)


def _made_from(plan: PruningPlan, runs: Sequence[Run]) -> PruningPlan:
    """The plan with the names of what was read."""
    read = replace(
        plan.provenance,
        corpora=tuple(each.manifest.corpus for each in runs),
        runs=tuple(each.manifest.run_id for each in runs),
    )
    return replace(plan, provenance=read)


def _parts(name: str) -> Parts:
    for each in PARTS:
        if name == each:
            return each
    raise PlanError(unknown_name("weight of paths", name, PARTS))


def _stats(runs: Sequence[Run], model: MoEModel) -> SampleStats:
    """The samples of all runs together."""
    tables = [load_sample_stats(each).to_table() for each in runs]
    return sample_stats(joined_samples(tables), Grid(model.layers))
