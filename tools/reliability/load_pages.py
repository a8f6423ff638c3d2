"""Every page of one very large model: how long it takes, what it sends, what memory it needs."""

import asyncio
from collections.abc import Awaitable

import pandas as pd
import psutil

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


class _Measured:
    """Rows of the table, as sessions draw."""

    def __init__(self, pid: int) -> None:
        self._process = psutil.Process(pid)
        self.rows: list[tuple[str, str, float, float, float, float]] = []
        self.problems: list[str] = []

    async def draw(self, page: str, what: str, drawing: Awaitable[Drawn]) -> None:
        before = cpu_seconds(self._process)
        drawn = await drawing
        used, memory = cpu_seconds(self._process) - before, self._process.memory_info().rss
        sizes = (drawn.nbytes / 1024, memory / 2**20)
        self.rows.append((page, what, drawn.seconds * 1e3, used * 1e3, *sizes))
        self.problems += [f"{page}, {what}: {words}" for words in drawn.exceptions]


def measure(world: World) -> tuple[pd.DataFrame, list[str]]:
    """Table `page, what, ms, cpu_ms, KiB, server_MiB` of one session alone; what is wrong."""
    with world.server() as server:
        measured = _Measured(server.process.pid)
        asyncio.run(_walk(server.port, measured))
    columns = ["page", "what", "ms", "cpu_ms", "KiB", "server_MiB"]
    return pd.DataFrame(measured.rows, columns=columns), measured.problems


async def _walk(port: int, measured: _Measured) -> None:
    async with connected(port) as socket:
        session = Session(socket)
        for page in PAGES:
            name = page or "start"
            for what in ("first", "again"):
                await measured.draw(name, what, session.visit(page, f"model={MODEL}"))
            for key in filter(session.has, _TOGGLES.get(page, ())):
                options = session.options(key)
                # The ends of a slider and its middle, the first of a few buttons.
                step = max(1, len(options) // _OPTIONS)
                for option in options[::step]:
                    if session.has(key):
                        what = f"{key} = {option}"
                        await measured.draw(name, what, session.choose(key, option))
