"""Toggle to paint on the Explore page of a 48 x 128 model, in Chromium on this machine."""

import os
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median, quantiles
from tempfile import TemporaryDirectory

import numpy as np
from playwright.sync_api import Page, sync_playwright
from synthetic import write_checkpoint

from analysis.checkpoint import open_checkpoint
from analysis.drain import drain
from analysis.model import MoEModel, describe_model
from analysis.stats import EXPERT_COLUMNS, CorpusRef, Grid, RunManifest, measured_model
from analysis.store import StatsStore, digest_of, run_name, save_expert_stats
from analysis.weights import weight_statistics

LAYERS, EXPERTS, PORT, ROUNDS = 48, 128, 8599, 30
ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"]
READY = '[data-testid="stApp"][data-test-script-state="notRunning"]'
# Resolves when the first number on the page has changed and two frames were drawn since.
PAINTED = """(before) => new Promise(resolve => {
  const look = () => {
    const now = document.querySelector('[data-testid="stMetricDelta"]')?.innerText;
    if (now && now !== before) requestAnimationFrame(() => requestAnimationFrame(resolve));
    else requestAnimationFrame(look);
  };
  look();
})"""


def store_runs(model: MoEModel, stats_dir: Path) -> None:
    grid = Grid(model.layers)
    for seed, corpus in enumerate(("c4", "code", "math")):
        generator = np.random.default_rng(seed)
        table = grid.index()
        columns = {
            name: generator.gamma(2.0, 500.0, len(table)) + 1
            for name in EXPERT_COLUMNS
            if name not in ("layer", "expert", "vector_sum_sq")
        }
        digest = digest_of({"corpus": corpus})
        manifest = RunManifest(
            "routed",
            run_name("large", corpus, digest=digest),
            digest,
            measured_model(model),
            (CorpusRef(corpus, digest, 1, 1, 65536, 0, 0),),
            {"dtype": "bfloat16"},
            {},
        )
        vectors = generator.random((len(table), 16))
        save_expert_stats(stats_dir, manifest, table.assign(**columns), vectors)
    drain(weight_statistics(model, StatsStore(stats_dir)))


@contextmanager
def server(folder: Path) -> Iterator[str]:
    options = {"--models-root": "models", "--stats-dir": "stats", "--export-root": "exports"}
    words = [word for name, place in options.items() for word in (name, str(folder / place))]
    command = [sys.executable, "-m", "app.cli", "app", "--port", str(PORT), *words]
    environment = os.environ | {"MOEPRUNE_STATE_DIR": str(folder / "state")}
    process = subprocess.Popen(command, start_new_session=True, env=environment)
    address = f"http://127.0.0.1:{PORT}"
    try:
        started = time.perf_counter()
        while True:
            try:
                urllib.request.urlopen(f"{address}/_stcore/health").close()  # noqa: S310
                break
            except OSError:
                time.sleep(0.05)
        print(f"  start to first answer {time.perf_counter() - started:.1f} s")
        yield address
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait()


def toggle(page: Page, number: int) -> float:
    before = page.locator('[data-testid="stMetricDelta"]').first.inner_text()
    target = page.locator('.st-key-alpha [role="radio"]').nth(number % 3)
    started = time.perf_counter()
    target.click()
    page.evaluate(PAINTED, before)
    elapsed = time.perf_counter() - started
    page.wait_for_selector(READY)
    return elapsed


def measure(page: Page, address: str) -> None:
    received: list[int] = []
    page.on(
        "websocket",
        lambda socket: socket.on("framereceived", lambda data: received.append(len(data))),
    )
    page.goto(f"{address}/explore?model=large&criterion=unified&b=0&alpha=0&beta=1")
    page.wait_for_selector('[data-testid="stMetricDelta"]', timeout=60_000)
    page.wait_for_selector(READY)
    for number in (1, 2, 3):  # caches and fonts
        toggle(page, number)
    times, sizes = [], []
    for number in range(1, ROUNDS + 1):
        received.clear()
        times.append(toggle(page, number) * 1e3)
        sizes.append(sum(received) / 1024)
    print(
        f"  toggle to paint: p50 {median(times):.0f} ms, p90 {quantiles(times, n=10)[-1]:.0f} ms, "
        f"{median(sizes):.0f} KiB on the socket (largest {max(sizes):.0f})"
    )


def main() -> None:
    with TemporaryDirectory() as place:
        folder = Path(place)
        (folder / "stats").mkdir()
        model_path = folder / "models" / "large"
        model_path.mkdir(parents=True)
        write_checkpoint(model_path, LAYERS, EXPERTS, (16, 8))
        store_runs(describe_model(open_checkpoint(model_path), name="large"), folder / "stats")
        print(f"{LAYERS} x {EXPERTS}, {os.cpu_count()} cores")
        with server(folder) as address, sync_playwright() as playwright:
            browser = playwright.chromium.launch(
                executable_path=shutil.which("chromium"), args=ARGUMENTS
            )
            measure(browser.new_page(viewport={"width": 1440, "height": 1000}), address)
            browser.close()


if __name__ == "__main__":
    main()
