"""Processor time of a page of a model of many experts until it rests, in Chromium on this machine.

The first visit is that of a browser without any files of ours, after it has started.

`PYTHONPATH=.:tests python -m tools.benchmarks.visits [LAYERS EXPERTS [PAGE]]`, by default 58 256
compare.
"""

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import psutil
from playwright.sync_api import Page, sync_playwright
from servers import Server

from tools.benchmarks.dashboard import READY, chromium, cpu_seconds
from tools.reliability.load_world import MODEL, make_world

SHAPE, PAGE = (58, 256), "compare"
BROWSERS, VISITS = 3, 3
LOOK_SECONDS = 0.5
# Less than so much of a processor in a look, so many times, is rest.
REST_SECONDS, RESTING = 0.03, 3


@contextmanager
def browser_tab() -> Iterator[tuple[Page, psutil.Process]]:
    """A page of a browser that has just started, and its process."""
    with sync_playwright() as playwright:
        browser, process = chromium(playwright)
        page = browser.new_page(viewport={"width": 1440, "height": 1000})
        rest(process)
        yield page, process
        browser.close()


def rest(process: psutil.Process) -> float:
    """Wait until a process and its children rest; the processor time that they had used then."""
    resting, used = 0, cpu_seconds(process)
    rested = used
    while resting < RESTING:
        time.sleep(LOOK_SECONDS)
        before, used = used, cpu_seconds(process)
        if used - before >= REST_SECONDS:
            resting, rested = 0, used
        else:
            resting += 1
    return rested


def visit(page: Page, browser: psutil.Process, server: Server, name: str) -> tuple[float, float]:
    """Seconds of the browser and of the server for a visit."""
    page.goto("about:blank")
    before, of_server = rest(browser), cpu_seconds(psutil.Process(server.process.pid))
    page.goto(f"{server.url}/{name}?model={MODEL}&criterion=ean")
    page.wait_for_selector(".st-key-plan-bar strong", timeout=60_000)
    page.wait_for_selector(READY)
    used = rest(browser) - before
    return used, cpu_seconds(psutil.Process(server.process.pid)) - of_server


def main() -> None:
    shape = tuple(map(int, sys.argv[1:3])) if sys.argv[1:] else SHAPE
    name = sys.argv[3] if sys.argv[3:] else PAGE
    with TemporaryDirectory() as place:
        world = make_world(Path(place), *shape)
        print(f"{name}, {shape[0]} x {shape[1]}, {os.cpu_count()} cores")
        with world.server() as server:
            taken = []
            for _ in range(BROWSERS):
                with browser_tab() as (page, process):
                    taken.append([visit(page, process, server, name) for _ in range(VISITS)])
    for number, visits in enumerate(zip(*taken, strict=True), start=1):
        of_browser, of_server = zip(*visits, strict=True)
        times = ", ".join(f"{used:.2f}" for used in of_browser)
        print(
            f"  visit {number}: {median(of_browser):.2f} s of the browser ({times}), "
            f"{median(of_server):.2f} s of the server"
        )


if __name__ == "__main__":
    main()
