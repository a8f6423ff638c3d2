"""Fixtures for the components: synthetic tables, and a browser on a small Streamlit script."""

import runpy
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from os import killpg
from pathlib import Path
from types import SimpleNamespace

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

HERE = Path(__file__).parent
CHROMIUM_ARGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--no-first-run",
    "--font-render-hinting=none",
    "--force-color-profile=srgb",
]


@pytest.fixture(scope="session")
def synthetic():
    """`synthetic_maps.py`, which a plain import finds only from the Streamlit script."""
    return SimpleNamespace(**runpy.run_path(str(HERE / "synthetic_maps.py")))


@pytest.fixture(scope="module")
def map_url() -> Iterator[str]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    server = subprocess.Popen(
        [
            *(sys.executable, "-m", "streamlit", "run", HERE / "expert_map_app.py"),
            *(f"--server.port={port}", "--server.address=127.0.0.1", "--server.headless=true"),
            *("--browser.gatherUsageStats=false", "--server.fileWatcherType=none"),
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        _wait_until_healthy(port)
        yield f"http://127.0.0.1:{port}"
    finally:
        killpg(server.pid, signal.SIGTERM)
        server.wait(timeout=10)


def _wait_until_healthy(port: int) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/_stcore/health") as answer:
                if answer.status == 200:
                    return
        except urllib.error.URLError:
            time.sleep(0.1)
    raise TimeoutError("The Streamlit server did not start within 60 s.")


@pytest.fixture(scope="module")
def chromium(chromium_path: str) -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium_path, args=CHROMIUM_ARGS)
        yield browser
        browser.close()


@pytest.fixture
def map_page(chromium: Browser, map_url: str) -> Iterator[Page]:
    """The map on its page; fails on a console error or on a request that leaves this machine."""
    page = chromium.new_page(viewport={"width": 1200, "height": 900})
    errors, hosts = [], set()
    page.on("console", lambda line: errors.append(line.text) if line.type == "error" else None)
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("request", lambda request: hosts.add(request.url.split("/")[2].split(":")[0]))
    page.goto(map_url)
    page.get_by_role("application").wait_for()
    page.get_by_text("python says").wait_for()
    yield page
    page.close()
    assert errors == []
    assert hosts <= {"127.0.0.1", ""}  # blob: and data: have no host
