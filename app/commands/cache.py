"""Commands on the cache: runs list, show, merge, extend, verify, remove."""

import json
from typing import Annotated

import typer

from analysis.errors import StatsError
from analysis.stats.extending import extend_run
from analysis.stats.merging import merge_runs
from analysis.stats.store import MANIFEST, SHIPPED_STATS
from app.commands import options
from app.console import err, out, show_frame
from app.settings import stats_store
from app.tables.costs import LISTED_COSTS, cost_table

runs = typer.Typer(help="The cache of runs.", no_args_is_help=True)
RunId = Annotated[str, typer.Argument(metavar="RUN", help="Run id, or its unique beginning.")]


@runs.command("list")
def list_runs(stats_dir: options.StatsDir = None) -> None:
    """List the finished runs, and what each cost on the machine that made it."""

    def report(problem: StatsError) -> None:
        err.print(f"left out: {problem}", markup=False)

    found = list(stats_store(stats_dir).runs(report))
    if not found:
        out.print("No runs. Make one with: moeprune calibrate MODEL --corpus CORPUS")
        return
    costs = cost_table(found, identity="").astype({"tokens": "Int64"})
    show_frame("", costs[list(LISTED_COSTS)], missing="-")


@runs.command("show")
def show_run(run: RunId, stats_dir: options.StatsDir = None) -> None:
    """Print the manifest of a run."""
    found = stats_store(stats_dir).get(run)
    out.print_json(json.dumps(json.loads((found.path / MANIFEST).read_text())))


@runs.command("merge")
def merge(
    run: Annotated[list[str], typer.Argument(metavar="RUN...", help="Two or more run ids.")],
    stats_dir: options.StatsDir = None,
) -> None:
    """Add the sums of several runs, as if their corpora had been one."""
    store = stats_store(stats_dir)
    merged = merge_runs([store.get(name) for name in run], store.target)
    out.print(f"{merged.manifest.run_id}: {merged.manifest.num_tokens:,} tokens", markup=False)
    out.print(str(merged.path), markup=False)


@runs.command("extend")
def extend(
    run: RunId,
    other: Annotated[
        str, typer.Argument(metavar="OTHER", help="A run of the same tokens with more groups.")
    ],
    stats_dir: options.StatsDir = None,
) -> None:
    """Add to a run the groups router and dense of another run of the same tokens."""
    store = stats_store(stats_dir)
    found = extend_run(store.get(run), store.get(other))
    out.print(f"{found.manifest.run_id}: groups {', '.join(found.manifest.groups)}", markup=False)
    out.print(str(found.path), markup=False)


@runs.command("verify")
def verify(run: RunId, stats_dir: options.StatsDir = None) -> None:
    """Check the files of a run against its manifest."""
    store = stats_store(stats_dir)
    found = store.get(run)
    store.verify(found)
    out.print(f"{found.manifest.run_id}: {len(found.manifest.files)} files intact", markup=False)


@runs.command("remove")
def remove(
    run: RunId,
    stats_dir: options.StatsDir = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
) -> None:
    """Delete a run for good."""
    store = stats_store(stats_dir)
    found = store.get(run)
    if found.path.parent.resolve() == SHIPPED_STATS.resolve():
        raise StatsError(f"{found.manifest.run_id} ships with the program and is not removed.")
    if not yes:
        typer.confirm(f"Remove {found.manifest.run_id}?", abort=True)
    store.remove(found)
    out.print(f"removed {found.manifest.run_id}", markup=False)
