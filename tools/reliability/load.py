"""The dashboard and the commands under load: sessions, jobs, runs, and a very large model.

`python -m tools.reliability.load sessions --sessions 20 --toggles 15 --seed 3` prints a table; see
`--help` for the others. What must hold is asserted; times are printed, for they are the machine's.
"""

import asyncio
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import pandas as pd
import typer

from tools.reliability import load_lists, load_pages, load_sessions
from tools.reliability.load_world import World, make_world

app = typer.Typer(add_completion=False, help=__doc__)


@contextmanager
def _world(layers: int, experts: int) -> Iterator[World]:
    with tempfile.TemporaryDirectory() as folder:
        yield make_world(Path(folder), layers, experts)


def _show(table: pd.DataFrame, problems: list[str]) -> None:
    """Print all of it; ends with 1 if there are problems."""
    print(table.round(1).to_string(index=False))
    print(*problems, f"{len(problems)} problems", sep="\n")
    raise typer.Exit(bool(problems))


@app.command()
def sessions(
    sessions: int = 20,
    toggles: Annotated[int, typer.Option(help="Of each session.")] = 15,
    pause: Annotated[float, typer.Option(help="Seconds between two toggles.")] = 0.0,
    rounds: Annotated[int, typer.Option(help="Repetitions, for the memory.")] = 3,
    seed: int = 0,
    layers: int = 48,
    experts: int = 128,
) -> None:
    """Many sessions that toggle at once."""
    levels = sorted({1, min(5, sessions), sessions})
    with _world(layers, experts) as world, world.server() as server:
        tallies = asyncio.run(load_sessions.measure(server, levels, toggles, seed, pause))
        table = load_sessions.table_of(tallies)
        for number in range(rounds):
            print(f"round {number + 1}: {load_sessions.memory_after(server):.0f} MiB when all left")
            again = load_sessions.measure(server, levels[-1:], toggles, seed + number)
            tallies += asyncio.run(again)
        print(f"in the end: {load_sessions.memory_after(server):.0f} MiB")
    _show(table, [problem for tally in tallies for problem in tally.problems])


@app.command()
def jobs(
    jobs: Annotated[int, typer.Option(help="That wait, and as many that ended.")] = 1000,
) -> None:
    """A long table of jobs."""
    with _world(4, 8) as world:
        _show(*load_lists.measure_jobs(world, jobs))


@app.command()
def runs(runs: int = 500, layers: int = 48, experts: int = 128) -> None:
    """A cache of many runs."""
    with _world(layers, experts) as world:
        _show(*load_lists.measure_runs(world, runs))


@app.command()
def pages(layers: int = 94, experts: int = 512) -> None:
    """Every page of one very large model."""
    with _world(layers, experts) as world:
        _show(*load_pages.measure(world))


if __name__ == "__main__":
    app()
