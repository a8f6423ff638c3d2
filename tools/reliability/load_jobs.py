"""A job table of thousands: one job that runs, many that wait and many that ended.

The process that measures passes for the worker of the running job, so that no other one starts.
"""

import asyncio
import dataclasses
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from statistics import median

import pandas as pd
import psutil
from servers import Server

from app.jobs.model import Job, JobState
from app.jobs.process import start_time
from app.jobs.runner import LocalRunner
from app.jobs.store import JobStore
from tools.reliability.load_client import Drawn, Session, connected
from tools.reliability.load_world import TURNS, World, median_ms

_REQUEST = {"model": "/models/large", "corpus": "demo-code", "tokens": 65_536, "stats_dir": "/s"}
_COMMAND = "moeprune calibrate large --corpus demo-code --tokens 65536"


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
            done = dataclasses.replace(first, id=f"{number:012x}", result={"run_id": "r"}, **ended)
            jobs.insert(done)
        running = dataclasses.replace(
            first, state=JobState.RUNNING, started_at=now, heartbeat_at=now, **worker
        )
        jobs.insert(running)
    for number in range(count):
        store.submit("calibrate", _REQUEST, f"number {number}", _COMMAND, "local")
    return running


def measure(world: World, count: int) -> tuple[pd.DataFrame, list[str]]:
    """Times with one running job alone and with all; what is wrong.

    Returns:
        A table `what, few_ms, many_ms` and the problems.
    """
    store = JobStore(world.state / "jobs.sqlite")
    few = _times(world, store)
    began = time.perf_counter()
    running = fill(store, count)
    queueing = (time.perf_counter() - began) / count * 1e3
    many = _times(world, store)
    rows = [(name, few.get(name, float("nan")), many[name]) for name in many]
    rows.append(("queue a job", float("nan"), queueing))
    table = pd.DataFrame(rows, columns=["what", "few_ms", "many_ms"])
    return table, [*_wrong_listing(world, store), *asyncio.run(_wrong_page(world, running, count))]


def _times(world: World, store: JobStore) -> dict[str, float]:
    actions: Mapping[str, Callable[[], object]] = {
        "moeprune jobs list --limit 5000": lambda: listed(world),
        "a page of the list": lambda: store.page(12),
        "the last page": lambda: store.page(12, max(0, sum(store.counts().values()) - 12)),
        "counts by state": store.counts,
        "tick of the runner": LocalRunner(store).tick,
    }
    found = {name: median_ms(action) for name, action in actions.items()}
    with world.server() as server:
        return found | asyncio.run(_page_times(server))


def listed(world: World) -> str:
    """What `moeprune jobs list` prints."""
    return subprocess.run(
        [sys.executable, "-m", "app.cli", "jobs", "list", "--limit", "5000"],
        env=world.environment,
        check=True,
        capture_output=True,
        text=True,
    ).stdout


async def _page_times(server: Server) -> dict[str, float]:
    process = psutil.Process(server.process.pid)
    async with connected(server.port) as socket_:
        session = Session(socket_)
        await session.visit("")
        found = {"Start page": [(await session.visit("")).seconds for _ in range(TURNS)]}
        if session.polls:
            found["its list, drawn each second"] = [
                (await session.poll()).seconds for _ in range(TURNS)
            ]
            before = process.cpu_times().user
            for _ in range(TURNS):
                await session.poll()
            found["the same, processor"] = [(process.cpu_times().user - before) / TURNS]
    return {name: median(seconds) * 1e3 for name, seconds in found.items()}


def _wrong_listing(world: World, store: JobStore) -> list[str]:
    text = listed(world)
    ids = [job.id for job in store.page(5000)]
    return [
        f"{job_id} is {text.count(job_id)} times in the list"
        for job_id in ids
        if text.count(job_id) != 1
    ]


async def _wrong_page(world: World, running: Job, count: int) -> list[str]:
    """The Start page begins with the job that runs, and its last page ends with the oldest."""
    with world.server() as server:
        async with connected(server.port) as socket_:
            session = Session(socket_)
            first = await session.visit("")
            last = await session.choose("jobs.page", str(-(-(2 * count + 1) // 12)))
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
