"""Does a light client make the server do what a browser does? The same toggles by either."""

import asyncio
import shutil
from collections.abc import Callable

import pandas as pd
import psutil
from playwright.sync_api import Page, sync_playwright
from servers import Server

from tools.benchmarks.dashboard import ARGUMENTS, open_explore, toggle
from tools.reliability.load_client import Session, connected
from tools.reliability.load_sessions import PAGE, QUERY, cpu_seconds

_WARM = 3


def compare(server: Server, toggles: int) -> pd.DataFrame:
    """Table `client, cpu_ms, KiB`: what the server does and sends for one toggle."""
    rows = [("browser", *_by_browser(server, toggles)), ("light", *_by_light(server, toggles))]
    return pd.DataFrame(rows, columns=["client", "cpu_ms", "KiB"])


def _by_browser(server: Server, toggles: int) -> tuple[float, float]:
    received: list[int] = []

    def watch(page: Page) -> None:
        page.on(
            "websocket",
            lambda socket: socket.on("framereceived", lambda data: received.append(len(data))),
        )

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=ARGUMENTS
        )
        page = browser.new_page(viewport={"width": 1440, "height": 1000})
        watch(page)
        open_explore(page, server.url)

        def run(first: int, last: int) -> None:
            for number in range(first, last):
                toggle(page, number)

        run(1, _WARM + 1)
        received.clear()
        cpu = _cpu_ms(server, lambda: run(_WARM + 1, _WARM + 1 + toggles), toggles)
        browser.close()
    return cpu, sum(received) / toggles / 1024


def _by_light(server: Server, toggles: int) -> tuple[float, float]:
    async def run() -> tuple[float, float]:
        process = psutil.Process(server.process.pid)
        async with connected(server.port) as socket:
            session = Session(socket)
            await session.visit(PAGE, QUERY)
            for number in range(1, _WARM + 1):
                await session.choose("alpha", str(number % 3))
            before, nbytes = cpu_seconds(process), 0
            for number in range(_WARM + 1, _WARM + 1 + toggles):
                nbytes += (await session.choose("alpha", str(number % 3))).nbytes
            used = cpu_seconds(process) - before
        return used / toggles * 1e3, nbytes / toggles / 1024

    return asyncio.run(run())


def _cpu_ms(server: Server, action: Callable[[], None], toggles: int) -> float:
    process = psutil.Process(server.process.pid)
    before = cpu_seconds(process)
    action()
    return (cpu_seconds(process) - before) / toggles * 1e3
