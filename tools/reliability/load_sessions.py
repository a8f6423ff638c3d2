"""Many sessions that toggle the Explore page at once: how long they wait, and whether all is right.

Every session walks through the states of four controls by lot. What a session draws must be, byte
for byte, what one alone draws that came from the same state: the bar says what changed.
"""

import asyncio
import time
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from random import Random

import numpy as np
import pandas as pd
import psutil
from servers import Server

from tools.reliability.load_client import Session, connected
from tools.reliability.load_world import MODEL, TEXTS

CONTROLS = {"b": ("0", "1"), "alpha": ("0", "1", "2"), "beta": ("0", "1", "2"), "corpus": TEXTS}
PAGE, QUERY = "explore", f"model={MODEL}&criterion=ean"
_FIRST = {"b": "0", "alpha": "0", "beta": "1", "corpus": TEXTS[0]}
# Until the server has forgotten sessions that were left.
FORGOTTEN_SECONDS = 4.0
State = tuple[str, ...]
Step = tuple[State, State]  # before and after a toggle


@dataclass
class Tally:
    """What came of some sessions at once."""

    sessions: int
    opened: list[float] = field(default_factory=list)
    toggles: list[float] = field(default_factory=list)
    nbytes: int = 0
    wall: float = 0.0
    cpu: float = 0.0
    rss: int = 0
    wrong: int = 0
    problems: list[str] = field(default_factory=list)


def walk(sessions: int, toggles: int, seed: int) -> list[list[tuple[str, str]]]:
    """For each session what it chooses, one after another: control and option."""
    return [list(_choices(Random(f"{seed} {index}"), toggles)) for index in range(sessions)]  # noqa: S311


def _choices(random: Random, toggles: int) -> Iterator[tuple[str, str]]:
    state = dict(_FIRST)
    for _ in range(toggles):
        key = random.choice(list(CONTROLS))
        state[key] = random.choice([option for option in CONTROLS[key] if option != state[key]])
        yield key, state[key]


def steps_of(choices: Sequence[tuple[str, str]]) -> Iterator[Step]:
    """The steps of a walk."""
    state = dict(_FIRST)
    for key, option in choices:
        before = tuple(state.values())
        state[key] = option
        yield before, tuple(state.values())


async def expected_pages(port: int, walks: Sequence[Sequence[tuple[str, str]]]) -> dict[Step, str]:
    """The digest of the page after every step of the walks, as one session alone draws it."""
    steps = sorted({step for choices in walks for step in steps_of(choices)})
    digests: dict[Step, str] = {}
    async with connected(port) as socket:
        session = Session(socket)
        await session.visit(PAGE, QUERY)
        now = dict(_FIRST)
        for step in steps:
            for state in step:
                for key, option in zip(CONTROLS, state, strict=True):
                    if now[key] != option:
                        drawn = await session.choose(key, option)
                        now[key] = option
            digests[step] = drawn.digest
    return digests


async def toggle_at_once(
    server: Server,
    walks: Sequence[Sequence[tuple[str, str]]],
    expected: dict[Step, str],
    pause: float = 0.0,
) -> Tally:
    """One session for each walk, all at once; each rests for `pause` seconds after a toggle."""
    process, tally = psutil.Process(server.process.pid), Tally(len(walks))
    async with AsyncExitStack() as stack:
        sockets = [await stack.enter_async_context(connected(server.port)) for _ in walks]
        sessions = [Session(socket) for socket in sockets]
        for drawn in await asyncio.gather(*(session.visit(PAGE, QUERY) for session in sessions)):
            tally.opened.append(drawn.seconds)
            tally.problems += drawn.exceptions
        began, used = time.perf_counter(), cpu_seconds(process)
        await asyncio.gather(
            *(
                _toggle(session, choices, expected, tally, pause)
                for session, choices in zip(sessions, walks, strict=True)
            )
        )
        tally.wall, tally.cpu = time.perf_counter() - began, cpu_seconds(process) - used
        tally.rss = process.memory_info().rss
    return tally


async def _toggle(
    session: Session,
    choices: Sequence[tuple[str, str]],
    expected: dict[Step, str],
    tally: Tally,
    pause: float,
) -> None:
    for (key, option), step in zip(choices, steps_of(choices), strict=True):
        drawn = await session.choose(key, option)
        tally.toggles.append(drawn.seconds)
        tally.nbytes += drawn.nbytes
        tally.problems += drawn.exceptions
        if drawn.digest != expected[step]:
            tally.wrong += 1
            tally.problems.append(f"{key} = {option}: not the page of one session alone")
        await asyncio.sleep(pause)


def cpu_seconds(process: psutil.Process) -> float:
    """Processor time that a process has used."""
    times = process.cpu_times()
    return float(times.user + times.system)


def table_of(tallies: Sequence[Tally]) -> pd.DataFrame:
    """Table of one row a tally.

    Columns `sessions, toggles, errors, wrong, open_ms, p50_ms, p90_ms, p99_ms, per_s, cpu_ms, KiB,
    server_MiB`: of the toggles; `open_ms` is the median until the page was first there.
    """
    return pd.DataFrame([_row_of(tally) for tally in tallies])


def _row_of(tally: Tally) -> dict[str, float]:
    p50, p90, p99 = np.percentile(tally.toggles, (50, 90, 99)) * 1e3
    count = len(tally.toggles)
    return {
        "sessions": tally.sessions,
        "toggles": count,
        "errors": len(tally.problems) - tally.wrong,
        "wrong": tally.wrong,
        "open_ms": float(np.median(tally.opened)) * 1e3,
        "p50_ms": p50,
        "p90_ms": p90,
        "p99_ms": p99,
        "per_s": count / tally.wall,
        "cpu_ms": tally.cpu / count * 1e3,
        "KiB": tally.nbytes / count / 1024,
        "server_MiB": tally.rss / 2**20,
    }


async def measure(
    server: Server, levels: Sequence[int], toggles: int, seed: int, pause: float = 0.0
) -> list[Tally]:
    """A tally for each number of sessions at once."""
    walks = walk(max(levels), toggles, seed)
    expected = await expected_pages(server.port, walks)
    tallies = []
    for sessions in levels:
        tallies.append(await toggle_at_once(server, walks[:sessions], expected, pause))
        await asyncio.sleep(FORGOTTEN_SECONDS)
    return tallies


def memory_after(server: Server) -> float:
    """Resident MiB of the server, once it has forgotten the sessions that were left."""
    time.sleep(FORGOTTEN_SECONDS)
    return float(psutil.Process(server.process.pid).memory_info().rss / 2**20)
