"""A cache of hundreds of runs: its list in the library, on the command line and on the pages."""

import asyncio
import json
import shutil
import subprocess
import sys
from statistics import median

import pandas as pd

from analysis.stats.store import MANIFEST, StatsStore, run_name
from tools.reliability.load_client import Session, connected
from tools.reliability.load_sessions import PAGE, QUERY
from tools.reliability.load_world import MODEL, TURNS, World, median_ms


def multiply(world: World, count: int) -> None:
    """Runs until there are `count`, each with files and a manifest of its own."""
    store = StatsStore(world.stats)
    runs = store.runs()
    source = next(run for run in runs if run.manifest.kind == "routed")
    raw = json.loads((source.path / MANIFEST).read_bytes())
    for number in range(count - len(runs)):
        digest = f"{number:064x}"
        name = run_name(MODEL, f"text-{number}", digest=digest[::-1])
        shutil.copytree(source.path, world.stats / name)
        corpus = {**raw["corpora"][0], "name": f"text-{number}", "digest": digest}
        own = {"run_id": name, "digest": digest, "corpora": [corpus]}
        (world.stats / name / MANIFEST).write_text(json.dumps({**raw, **own}, indent=2))


def measure(world: World, count: int) -> tuple[pd.DataFrame, list[str]]:
    """Times with the few runs that there are and with `count`; what is wrong.

    Returns:
        A table `what, few_ms, many_ms` and the problems.
    """
    few, _ = _times(world)
    multiply(world, count)
    many, problems = _times(world)
    names = {run.manifest.run_id for run in StatsStore(world.stats).runs()}
    text = listed(world)
    problems += [f"{name} is not listed once" for name in names if text.count(name) != 1]
    if len(names) != count:
        problems.append(f"{len(names)} runs instead of {count}")
    rows = [(name, few[name], many[name]) for name in many]
    return pd.DataFrame(rows, columns=["what", "few_ms", "many_ms"]), problems


def _times(world: World) -> tuple[dict[str, float], list[str]]:
    def first() -> object:
        return StatsStore(world.stats).runs()

    store = StatsStore(world.stats)
    found = {
        "list of a new store": median_ms(first),
        "list of the same store again": median_ms(store.runs),
        "moeprune runs list": median_ms(lambda: listed(world)),
    }
    with world.server() as server:
        pages, problems = asyncio.run(_page_times(server.port))
    return found | pages, problems


def listed(world: World) -> str:
    """What `moeprune runs list` prints."""
    return subprocess.run(
        [sys.executable, "-m", "app.cli", "runs", "list", "--stats-dir", str(world.stats)],
        env={**world.environment, "COLUMNS": "400"},
        cwd=world.root,
        check=True,
        capture_output=True,
        text=True,
    ).stdout


async def _page_times(port: int) -> tuple[dict[str, float], list[str]]:
    async with connected(port) as socket:
        session = Session(socket)
        drawn = [await session.visit("", f"model={MODEL}") for _ in range(TURNS + 1)]
        toggled = [await session.visit(PAGE, QUERY)]
        for number in range(TURNS):
            toggled.append(await session.choose("alpha", str(1 + number % 2)))
    times = {
        "Start page, first": drawn[0].seconds,
        "Start page, again": median(each.seconds for each in drawn[1:]),
        "Explore page, first": toggled[0].seconds,
        "Explore page, a toggle": median(each.seconds for each in toggled[1:]),
    }
    problems = [words for each in (*drawn, *toggled) for words in each.exceptions]
    return {name: seconds * 1e3 for name, seconds in times.items()}, problems
