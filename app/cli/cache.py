"""Commands on the cache: runs list, show, import, merge, verify, remove."""

import json
from collections.abc import Callable
from typing import Annotated

import typer

from analysis.numbers.words import counted
from analysis.stats.manifest import MANIFEST, Run
from analysis.stats.merging import merge_runs
from analysis.stats.reading import verify_run
from analysis.stats.store import stats_store
from app.cli.derive import command
from app.cli.help import Commands
from app.console import err, finish, follow, out, show_object, show_table
from pruning.option import Option
from pruning.spec.options import (
    AllowSmallIds,
    Count,
    Revision,
    SkipBadRows,
    StatsDir,
    Switch,
    Text,
    Traces,
)

runs = Commands("The cache of calibration runs.")
_MORE_GROUPS = "groups besides routed"  # which every calibration measures
RunId = Annotated[str, Option("Run id, or its unique beginning.", place="RUN")]


def _of_runs(handler: Callable[..., None]) -> Callable[..., None]:
    return runs.command(handler.__name__.removesuffix("_runs").removesuffix("_run"))(
        command()(handler)
    )


@_of_runs
def list_runs(*, stats_dir: StatsDir | None = None) -> None:
    """List the finished runs, and what each cost on the machine that made it.

    Example: moeprune runs list
    """
    from app.tables.costs import LISTED_COSTS, cost_rows

    finished_runs = list(
        stats_store(stats_dir).runs(lambda problem: err.print(f"left out: {problem}"))
    )
    if not finished_runs:
        out.print("No runs. Make one with: moeprune calibrate MODEL --corpus CORPUS")
        return
    costs = cost_rows(finished_runs, identity="")
    for row in costs:
        groups = (row["groups"] or "").split(",")
        row[_MORE_GROUPS] = ", ".join(group for group in groups if group != "routed")
    columns = [_MORE_GROUPS if name == "groups" else name for name in LISTED_COSTS]
    rows = [[row[name] for name in columns] for row in costs]
    cells = [["-" if value in (None, "") else value for value in row] for row in rows]
    spare = ("tokens", "seconds", "shape", "peak MiB", "tokens/s", "answers", "source")
    show_table("", columns, cells, spare=spare, whole=("shape", "peak MiB", _MORE_GROUPS))


@_of_runs
def show_run(*, run: RunId, stats_dir: StatsDir | None = None) -> None:
    """Print the manifest of a run.

    Example: moeprune runs show demo-demo-math
    """
    cached_run = stats_store(stats_dir).get(run)
    show_object(json.loads((cached_run.path / MANIFEST).read_text()))


@runs.command("import")
@command()
def import_runs(
    *,
    traces: Traces,
    model: Annotated[Text, Option("Checkpoint that the server runs: directory, id or `demo`.")],
    revision: Revision | None = None,
    name: Annotated[
        Text | None, Option("Name as --calibrated-on takes it; default: that of the first file.")
    ] = None,
    count: Count = "all",
    skip_bad_rows: SkipBadRows = 0,
    allow_small_ids: AllowSmallIds = False,
    stats_dir: StatsDir | None = None,
) -> None:
    """Count the experts that a server chose for live traffic: a run that frequency ranks by.

    Example: moeprune runs import monday.jsonl --model demo
    """
    from analysis.model.opening import load_model_index
    from analysis.traffic.importing import (
        TrafficImport,
        import_traffic,
        traffic_words,
        usual_name,
    )

    paths = tuple(dict.fromkeys(traces))
    asked = TrafficImport(
        paths,
        name or usual_name(paths),
        count,
        skip_bad_rows,
        allows_small_ids=allow_small_ids,
    )
    described = load_model_index(model, revision=revision)
    run = follow(import_traffic(described, asked, stats_store(stats_dir)))
    (corpus,) = run.manifest.corpora
    _say_run(run, traffic_words(corpus))


@_of_runs
def merge(
    *,
    run: Annotated[tuple[str, ...], Option("Two or more run ids.", place="RUN...")],
    stats_dir: StatsDir | None = None,
) -> None:
    """Add the sums of several runs, as if their corpora had been one.

    Example: moeprune runs merge my-model-c4 my-model-tulu-math
    """
    store = stats_store(stats_dir)
    merged = merge_runs([store.get(name) for name in run], store.target)
    _say_run(merged, f"{merged.manifest.num_tokens:,} tokens")


def _say_run(run: Run, words: str) -> None:
    manifest = run.manifest
    result = {"run": manifest.run_id, "path": str(run.path), "tokens": manifest.num_tokens}
    finish(f"{manifest.run_id}: {words}\n{run.path}", result)


@_of_runs
def verify(*, run: RunId, stats_dir: StatsDir | None = None) -> None:
    """Check the files of a run against its manifest.

    Example: moeprune runs verify demo-demo-math
    """
    store = stats_store(stats_dir)
    cached_run = store.get(run)
    verify_run(cached_run)
    _say_run(cached_run, f"{counted(len(cached_run.manifest.files), 'file')} intact")


@_of_runs
def remove(
    *,
    run: RunId,
    stats_dir: StatsDir | None = None,
    yes: Annotated[Switch, Option("Do not ask.")] = False,
) -> None:
    """Delete a run for good.

    Example: moeprune runs remove my-model-c4 --yes
    """
    store = stats_store(stats_dir)
    cached_run = store.get(run)
    if not yes and not cached_run.is_shipped:  # which is refused
        typer.confirm(f"Remove {cached_run.manifest.run_id}?", abort=True)
    store.remove(cached_run)
    finish(f"removed {cached_run.manifest.run_id}", {"run": cached_run.manifest.run_id})
