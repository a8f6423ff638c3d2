"""Long lists of jobs and runs, in the library, on the command line and on the pages.

The process that measures passes for the worker of the job that runs, so that no other one starts.
"""

import asyncio
import dataclasses
import json
import os
import shutil
import socket
import time
from collections.abc import Mapping
from statistics import median

import pandas as pd
import psutil
from servers import Server

from analysis.files.naming import run_name
from analysis.stats.manifest import MANIFEST
from analysis.stats.store import StatsStore
from app.jobs.model import Job, JobState
from app.jobs.process import start_time
from app.jobs.runner import LocalRunner
from app.jobs.store import JobStore
from tools.reliability.load_client import Drawn, Session, connected
from tools.reliability.load_sessions import PAGE, QUERY, cpu_seconds
from tools.reliability.load_world import MODEL, TURNS, World, median_ms

_REQUEST = {"model": "/models/large", "corpus": "demo-code", "tokens": 65_536, "stats_dir": "/s"}
_COMMAND = "moeprune calibrate large --corpus demo-code --tokens 65536"
_JOBS_OF_A_PAGE = 12
Times = dict[str, float]


def measure_jobs(world: World, count: int) -> tuple[pd.DataFrame, list[str]]:
    """Times with an empty table, and with `count` jobs that wait and as many that ended.

    Returns:
        A table `what, few_ms, many_ms` and what is wrong.
    """
    store = JobStore(world.state / "jobs.sqlite")
    few = _times_of_jobs(world, store)
    began = time.perf_counter()
    running = fill(store, count)
    queueing = (time.perf_counter() - began) / count * 1e3
    many = _times_of_jobs(world, store) | {"queue a job": queueing}
    text = world.printed("jobs", "list", "--limit", 5000)
    problems = [
        f"{job.id} is {text.count(job.id)} times in the list"
        for job in store.page(5000)
        if text.count(job.id) != 1
    ]
    return _compared(few, many), problems + asyncio.run(_wrong_page(world, running, count))


def measure_runs(world: World, count: int) -> tuple[pd.DataFrame, list[str]]:
    """Times with the few runs that there are and with `count`.

    Returns:
        A table `what, few_ms, many_ms` and what is wrong.
    """
    few, _ = _times_of_runs(world)
    multiply(world, count)
    many, problems = _times_of_runs(world)
    names = {run.manifest.run_id for run in StatsStore(world.stats).runs()}
    text = world.printed("runs", "list", "--stats-dir", world.stats)
    problems += [f"{name} is not listed once" for name in names if text.count(name) != 1]
    if len(names) != count:
        problems.append(f"{len(names)} runs instead of {count}")
    return _compared(few, many), problems


def _compared(few: Mapping[str, float], many: Mapping[str, float]) -> pd.DataFrame:
    table = pd.DataFrame({"few_ms": pd.Series(few), "many_ms": pd.Series(many)})
    return table.loc[list(many)].rename_axis("what").reset_index()


def fill(store: JobStore, count: int) -> Job:
    """`count` jobs that ended, one that runs, and `count` that wait; the one that runs."""
    first = store.submit("calibrate", _REQUEST, "the first", _COMMAND, "local")
    now = time.time()
    ended = {"state": JobState.DONE, "started_at": now - 60, "finished_at": now}
    worker = {"host": socket.gethostname(), "pid": os.getpid()}
    worker |= {"process_start": start_time(os.getpid())}
    with store.transaction() as jobs:
        jobs.delete(first.id)
        for number in range(count):
            jobs.insert(
                dataclasses.replace(first, id=f"{number:012x}", result={"run_id": "r"}, **ended)
            )
        running = dataclasses.replace(
            first, state=JobState.RUNNING, started_at=now, heartbeat_at=now, **worker
        )
        jobs.insert(running)
    for number in range(count):
        store.submit("calibrate", _REQUEST, f"number {number}", _COMMAND, "local")
    return running


def multiply(world: World, count: int) -> None:
    """Runs until there are `count`, each with files and a manifest of its own."""
    runs = StatsStore(world.stats).runs()
    source = next(run for run in runs if run.manifest.kind == "routed")
    raw = json.loads((source.path / MANIFEST).read_bytes())
    for number in range(count - len(runs)):
        digest = f"{number:064x}"
        name = run_name(MODEL, f"text-{number}", digest=digest[::-1])
        shutil.copytree(source.path, world.stats / name)
        corpus = {**raw["corpora"][0], "name": f"text-{number}", "digest": digest}
        changes = {"run_id": name, "digest": digest, "corpora": [corpus]}
        (world.stats / name / MANIFEST).write_text(json.dumps({**raw, **changes}, indent=2))


def _times_of_jobs(world: World, store: JobStore) -> Times:
    last = max(0, sum(store.counts().values()) - _JOBS_OF_A_PAGE)
    times = {
        "moeprune jobs list --limit 5000": median_ms(
            lambda: world.printed("jobs", "list", "--limit", 5000)
        ),
        "a page of the list": median_ms(lambda: store.page(_JOBS_OF_A_PAGE)),
        "the last page": median_ms(lambda: store.page(_JOBS_OF_A_PAGE, last)),
        "counts by state": median_ms(store.counts),
        "tick of the runner": median_ms(LocalRunner(store).tick),
    }
    with world.server() as server:
        return times | asyncio.run(_times_of_start(server))


async def _times_of_start(server: Server) -> Times:
    process = psutil.Process(server.process.pid)
    async with connected(server.port) as connection:
        session = Session(connection)
        await session.visit("")
        times = {"Start page": median([(await session.visit("")).seconds for _ in range(TURNS)])}
        if session.polls:
            before = cpu_seconds(process)
            polls = [(await session.poll()).seconds for _ in range(TURNS)]
            times["its list, drawn each second"] = median(polls)
            times["the same, CPU"] = (cpu_seconds(process) - before) / TURNS
    return {name: seconds * 1e3 for name, seconds in times.items()}


async def _wrong_page(world: World, running: Job, count: int) -> list[str]:
    """The Start page begins with the job that runs, and its last page ends with the oldest."""
    with world.server() as server:
        async with connected(server.port) as connection:
            session = Session(connection)
            first = await session.visit("")
            pages = -(-(2 * count + 1) // _JOBS_OF_A_PAGE)
            last = await session.choose("jobs.page", str(pages))
    problems = [*first.exceptions, *last.exceptions]
    if _buttons(first, "job.cancel")[0] != running.id:
        problems.append("the list on the page does not begin with the job that runs")
    if _buttons(last, "job.remove")[-1] != f"{0:012x}":
        problems.append("the last page of the list does not end with the oldest job")
    words = f"1 job running, {count:,} queued"
    if not any(words in text for text in first.texts):
        problems.append(f"the sidebar does not say {words!r}")
    return problems


def _buttons(drawn: Drawn, action: str) -> list[str]:
    """Ids of the jobs with a button of this kind, from top to bottom."""
    keys = (key for key in drawn.keys if key.startswith(action))
    return [key.rpartition(".")[2] for key in keys] or [""]


def _times_of_runs(world: World) -> tuple[Times, list[str]]:
    store = StatsStore(world.stats)
    times = {
        "list of a new store": median_ms(lambda: StatsStore(world.stats).runs()),
        "list of the same store again": median_ms(store.runs),
        "moeprune runs list": median_ms(
            lambda: world.printed("runs", "list", "--stats-dir", world.stats)
        ),
    }
    with world.server() as server:
        pages, problems = asyncio.run(_times_of_pages(server.port))
    return times | pages, problems


async def _times_of_pages(port: int) -> tuple[Times, list[str]]:
    async with connected(port) as connection:
        session = Session(connection)
        drawn = [await session.visit("", f"model={MODEL}") for _ in range(TURNS + 1)]
        toggled = [await session.visit(PAGE, QUERY)]
        for number in range(TURNS):
            toggled.append(await session.choose("alpha", str(1 + number % 2)))
    times = {
        "Start page, first": drawn[0].seconds,
        "Start page, again": median(visit.seconds for visit in drawn[1:]),
        "Explore page, first": toggled[0].seconds,
        "Explore page, a toggle": median(visit.seconds for visit in toggled[1:]),
    }
    problems = [words for visit in (*drawn, *toggled) for words in visit.exceptions]
    return {name: seconds * 1e3 for name, seconds in times.items()}, problems
