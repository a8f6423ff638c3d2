"""The dashboard and the commands under load: sessions, jobs, runs, and a very large model.

`python -m tools.reliability.load sessions --sessions 20 --toggles 15 --seed 3` prints a table; see
`--help` for the others. What must hold is asserted; times are printed, for they are the machine's.
"""

import argparse
import asyncio
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pandas as pd

from tools.reliability import load_browser, load_jobs, load_pages, load_runs, load_sessions
from tools.reliability.load_world import make_world


def _show(table: pd.DataFrame) -> None:
    print(table.round(1).to_string(index=False), flush=True)


def _sessions(chosen: argparse.Namespace, folder: Path) -> list[str]:
    levels = sorted({1, min(5, chosen.sessions), chosen.sessions})
    world = make_world(folder, chosen.layers, chosen.experts)
    with world.server() as server:
        if chosen.browser:
            _show(load_browser.compare(server, chosen.toggles))
        tallies = asyncio.run(
            load_sessions.measure(server, levels, chosen.toggles, chosen.seed, chosen.pause)
        )
        _show(load_sessions.table_of(tallies))
        for number in range(chosen.rounds):
            print(f"round {number + 1}: {load_sessions.memory_after(server):.0f} MiB when all left")
            again = load_sessions.measure(server, levels[-1:], chosen.toggles, chosen.seed + number)
            tallies += asyncio.run(again)
        print(f"in the end: {load_sessions.memory_after(server):.0f} MiB")
    return [problem for tally in tallies for problem in tally.problems]


def _jobs(chosen: argparse.Namespace, folder: Path) -> list[str]:
    table, problems = load_jobs.measure(make_world(folder, 4, 8), chosen.jobs)
    print(f"one job, and {chosen.jobs:,} that ended, one that runs, {chosen.jobs:,} that wait")
    _show(table)
    return problems


def _runs(chosen: argparse.Namespace, folder: Path) -> list[str]:
    world = make_world(folder, chosen.layers, chosen.experts)
    table, problems = load_runs.measure(world, chosen.runs)
    _show(table)
    return problems


def _pages(chosen: argparse.Namespace, folder: Path) -> list[str]:
    table, problems = load_pages.measure(make_world(folder, chosen.layers, chosen.experts))
    _show(table)
    return problems


_PARTS: dict[str, Callable[[argparse.Namespace, Path], list[str]]] = {
    "sessions": _sessions,
    "jobs": _jobs,
    "runs": _runs,
    "pages": _pages,
}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__)
    parts = parser.add_subparsers(dest="part", required=True)
    sessions = parts.add_parser("sessions", help="many sessions toggle at once")
    sessions.add_argument("--sessions", type=int, default=20)
    sessions.add_argument("--toggles", type=int, default=15, help="of each session")
    sessions.add_argument("--browser", action="store_true", help="compare with Chromium first")
    sessions.add_argument("--pause", type=float, default=0.0, help="seconds between two toggles")
    sessions.add_argument("--rounds", type=int, default=3, help="repetitions, for the memory")
    sessions.add_argument("--seed", type=int, default=0)
    jobs = parts.add_parser("jobs", help="a long table of jobs")
    jobs.add_argument("--jobs", type=int, default=1000, help="that wait, and as many that ended")
    runs = parts.add_parser("runs", help="a cache of many runs")
    runs.add_argument("--runs", type=int, default=500)
    pages = parts.add_parser("pages", help="every page of one very large model")
    for part, layers, experts in ((sessions, 48, 128), (runs, 48, 128), (pages, 94, 512)):
        part.add_argument("--layers", type=int, default=layers)
        part.add_argument("--experts", type=int, default=experts)
    return parser


def main() -> None:
    chosen = _parser().parse_args()
    with tempfile.TemporaryDirectory() as folder:
        problems = _PARTS[chosen.part](chosen, Path(folder))
    for problem in problems:
        print(problem)
    print(f"{len(problems)} problems")
    sys.exit(bool(problems))


if __name__ == "__main__":
    main()
