"""Toggle to paint on the Explore page of a model of many experts, in Chromium on this machine.

The time runs from the browser's click event. Playwright itself waits two frames before it clicks,
until the button stands still; the time with that is printed too.

`PYTHONPATH=.:tests python -m tools.benchmarks.dashboard [LAYERS EXPERTS]`, by default 48 128.
"""

import os
import shutil
import sys
import time
from contextlib import suppress
from pathlib import Path
from statistics import median, quantiles
from tempfile import TemporaryDirectory

import psutil
from playwright.sync_api import Browser, Page, Playwright, sync_playwright
from servers import Server

from tools.reliability.load_world import MODEL, make_world

SHAPE = (48, 128)  # layers, experts
ROUNDS = 30
ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"]
READY = '[data-testid="stApp"][data-test-script-state="notRunning"]'
NOTE_CLICK = """addEventListener(
    "click", event => { window.clicked = event.timeStamp }, {capture: true, once: true})"""
# Milliseconds from the click until the plan in the pinned line has changed and two frames were
# drawn since.
PAINTED = """(before) => new Promise(resolve => {
  const ended = () => resolve(performance.now() - window.clicked);
  const look = () => {
    const now = document.querySelector('.st-key-plan-bar strong')?.innerText;
    if (now && now !== before) requestAnimationFrame(() => requestAnimationFrame(ended));
    else requestAnimationFrame(look);
  };
  look();
})"""


def cpu_seconds(process: psutil.Process) -> float:
    """Processor time that a process and its children have used, those that ended too."""
    used = 0.0
    for member in (process, *process.children(recursive=True)):
        with suppress(psutil.NoSuchProcess):
            used += sum(member.cpu_times()[:4])
    return used


def chromium(playwright: Playwright) -> tuple[Browser, psutil.Process]:
    """This machine's Chromium, as all measurements start it, and its first process."""
    others = set(psutil.Process().children(recursive=True))
    browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=ARGUMENTS)
    mine = set(psutil.Process().children(recursive=True)) - others
    return browser, min(mine, key=psutil.Process.create_time)


def toggle(page: Page, number: int) -> tuple[float, float]:
    """Milliseconds from the click and from the order to click, until the paint."""
    before = page.locator(".st-key-plan-bar strong").first.inner_text()
    page.evaluate(NOTE_CLICK)
    target = page.locator('.st-key-alpha [role="radio"]').nth(number % 3)
    started = time.perf_counter()
    target.click()
    from_click = page.evaluate(PAINTED, before)
    elapsed = (time.perf_counter() - started) * 1e3
    page.wait_for_selector(READY)
    return from_click, elapsed


def open_explore(page: Page, address: str) -> None:
    """The page that is measured, once it rests."""
    page.goto(f"{address}/explore?model={MODEL}&criterion=ean")
    page.wait_for_selector(".st-key-plan-bar strong", timeout=60_000)
    page.wait_for_selector(READY)


def measure(page: Page, server: Server, browser: psutil.Process) -> None:
    received: list[int] = []
    page.on(
        "websocket",
        lambda socket: socket.on("framereceived", lambda data: received.append(len(data))),
    )
    open_explore(page, server.url)
    for number in (1, 2, 3):  # caches and fonts
        toggle(page, number)
    processes, times, sizes = (psutil.Process(server.process.pid), browser), [], []
    before = [cpu_seconds(process) for process in processes]
    for number in range(1, ROUNDS + 1):
        received.clear()
        times.append(toggle(page, number))
        sizes.append(sum(received) / 1024)
    for name, process, was in zip(("server", "browser"), processes, before, strict=True):
        used = (cpu_seconds(process) - was) / ROUNDS
        print(f"  {used * 1e3:.0f} ms of CPU of the {name} a toggle")
    print(f"  {median(sizes):.0f} KiB on the socket (largest {max(sizes):.0f})")
    for name, taken in zip(("click", "order to click"), zip(*times, strict=True), strict=True):
        p50, p90 = median(taken), quantiles(taken, n=10)[-1]
        print(f"  {name} to paint: p50 {p50:.0f} ms, p90 {p90:.0f} ms")


def main() -> None:
    layers, experts = map(int, sys.argv[1:3]) if sys.argv[1:] else SHAPE
    with TemporaryDirectory() as place:
        world = make_world(Path(place), layers, experts)
        print(f"{layers} x {experts}, {os.cpu_count()} cores")
        with world.server() as server, sync_playwright() as playwright:
            print(f"  start to first answer {server.seconds:.1f} s")
            browser, process = chromium(playwright)
            measure(browser.new_page(viewport={"width": 1440, "height": 1000}), server, process)
            browser.close()


if __name__ == "__main__":
    main()
