"""The dashboard in a real browser: one server for a module, and pages that watch what they load."""

import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import psutil
import pytest
from playwright.sync_api import Browser, ConsoleMessage, Page, expect, sync_playwright
from servers import Server, an_unused_port, start_server
from tabs import settled

from app.jobs.model import JobState
from app.jobs.process import signal_worker
from app.jobs.store import JobStore

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
# Nothing waits longer than it must; the machine may be busy.
PATIENCE_MS = 30_000
expect.set_options(timeout=PATIENCE_MS)


@dataclass
class Dashboard:
    """A server with folders of its own; it can be killed and started again."""

    root: Path
    port: int = field(default_factory=an_unused_port)
    server: Server | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def exports(self) -> Path:
        return self.root / "exports"

    @property
    def jobs(self) -> JobStore:
        return JobStore(self.root / "state" / "jobs.sqlite")

    def start(self) -> None:
        folders = {"MOEPRUNE_STATE_DIR": "state", "XDG_CACHE_HOME": "cache"}
        environment = {
            **os.environ,
            **{name: str(self.root / folder) for name, folder in folders.items()},
            "OMP_NUM_THREADS": "1",
        }
        (self.root / "stats").mkdir(exist_ok=True)
        self.server = start_server(
            ["app", "--port", self.port, "--stats-dir", "stats", "--export-root", "exports"],
            log=self.root / "server.log",
            environment=environment,
            cwd=self.root,
        )

    def kill(self) -> None:
        assert self.server is not None
        os.kill(self.server.process.pid, signal.SIGKILL)
        self.server.process.wait()

    def loaded_libraries(self) -> set[str]:
        assert self.server is not None
        maps = psutil.Process(self.server.process.pid).memory_maps()
        return {Path(part.path).name for part in maps}

    def stop(self) -> None:
        if self.server is not None and self.server.process.poll() is None:
            self.server.stop()
        for job in self.jobs.list():
            if job.state is JobState.RUNNING:
                signal_worker(replace(job), signal.SIGKILL)


@pytest.fixture(scope="module")
def dashboard(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dashboard]:
    dashboard = Dashboard(tmp_path_factory.mktemp("dashboard"))
    try:
        dashboard.start()
        yield dashboard
    finally:
        dashboard.stop()


@pytest.fixture(scope="module")
def chromium(chromium_path: str) -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium_path, args=CHROMIUM_ARGS)
        yield browser
        browser.close()


@pytest.fixture
def open_tab(chromium: Browser, dashboard: Dashboard):
    """Open a page in a browser of its own, without cookies or history.

    In the end: no request left this machine, and nothing went wrong in the browser.
    """
    contexts, errors, hosts = [], [], set()

    def note(message: ConsoleMessage) -> None:
        if message.type == "error" and not is_probe(message.location["url"]):
            errors.append(f"{message.text} {message.location['url']}")

    def _open(path: str = "", *, scheme: str = "light", width: int = 1280) -> Page:
        context = chromium.new_context(
            viewport={"width": width, "height": 1000}, color_scheme=scheme, locale="en-GB"
        )
        contexts.append(context)
        context.set_default_timeout(PATIENCE_MS)
        tab = context.new_page()
        tab.on("console", note)
        tab.on("pageerror", lambda error: errors.append(str(error)))
        tab.on("request", lambda request: hosts.add(host_of(request.url)))
        tab.on("websocket", lambda socket: hosts.add(host_of(socket.url)))
        tab.goto(f"{dashboard.url}/{path}")
        tab.get_by_role("heading", level=1).wait_for()
        return settled(tab)

    yield _open
    for context in contexts:
        context.close()
    assert errors == []
    assert hosts <= {"127.0.0.1", ""}  # blob: and data: have no host


def host_of(url: str) -> str:
    return url.split("/")[2].split(":")[0]


def is_probe(url: str) -> bool:
    """Streamlit looks for its server below the page's own path first, and finds nothing there."""
    pages = ("explore", "compare", "plan", "evaluate", "export")
    return any(f"/{page}/_stcore/" in url for page in pages)
