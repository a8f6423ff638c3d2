"""Every page of one very large model: how long it takes, what it sends, what memory it needs."""

import asyncio
from collections.abc import Awaitable
from typing import Any

import pandas as pd
import psutil
from servers import Server

from tools.reliability.load_client import Drawn, Session, connected
from tools.reliability.load_sessions import cpu_seconds
from tools.reliability.load_world import MODEL, World

PAGES = ("", "explore", "compare", "plan", "evaluate", "export")
# Page -> controls that are set to each of some of their options.
_TOGGLES = {
    "explore": ("alpha", "order", "show", "tab"),
    "compare": ("b.sparsity",),
    "plan": ("sparsity", "schedule"),
    "export": ("sparsity",),
}
_OPTIONS = 3


def measure(world: World) -> tuple[pd.DataFrame, list[str]]:
    """Table `page, what, ms, cpu_ms, KiB, server_MiB` of one session alone; what is wrong."""
    with world.server() as server:
        rows = asyncio.run(_walk(server))
    table = pd.DataFrame([row for row, _ in rows])
    return table, [problem for _, problems in rows for problem in problems]


async def _walk(server: Server) -> list[tuple[dict[str, Any], list[str]]]:
    process, rows = psutil.Process(server.process.pid), []

    async def draw(page: str, what: str, drawing: Awaitable[Drawn]) -> None:
        before = cpu_seconds(process)
        drawn = await drawing
        row = {
            "page": page,
            "what": what,
            "ms": drawn.seconds * 1e3,
            "cpu_ms": (cpu_seconds(process) - before) * 1e3,
            "KiB": drawn.nbytes / 1024,
            "server_MiB": process.memory_info().rss / 2**20,
        }
        rows.append((row, [f"{page}, {what}: {words}" for words in drawn.exceptions]))

    async with connected(server.port) as connection:
        session = Session(connection)
        for page in PAGES:
            name = page or "start"
            for what in ("first", "again"):
                await draw(name, what, session.visit(page, f"model={MODEL}"))
            for key in filter(session.has, _TOGGLES.get(page, ())):
                options = session.options(key)
                # The ends of a slider and its middle, the first of a few buttons.
                for option in options[:: max(1, len(options) // _OPTIONS)]:
                    if session.has(key):
                        await draw(name, f"{key} = {option}", session.choose(key, option))
    return rows
