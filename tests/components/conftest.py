"""Fixtures for the components: synthetic tables, and a browser on a small Streamlit script."""

import os
import runpy
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from playwright.sync_api import BrowserContext, Page
from servers import an_unused_port, served

HERE = Path(__file__).parent


@pytest.fixture(scope="session")
def synthetic():
    """`synthetic_maps.py`, which a plain import finds only from the Streamlit script."""
    return SimpleNamespace(**runpy.run_path(str(HERE / "synthetic_maps.py")))


@pytest.fixture(scope="module")
def map_url(tmp_path_factory) -> Iterator[str]:
    words = ["run", HERE / "expert_map_app.py", f"--server.port={an_unused_port()}"]
    words += ["--server.address=127.0.0.1", "--server.headless=true"]
    words += ["--browser.gatherUsageStats=false", "--server.fileWatcherType=none"]
    log = tmp_path_factory.mktemp("map") / "log"
    with served(
        words, program="streamlit", log=log, environment=os.environ, cwd=Path.cwd()
    ) as server:
        yield server.url


@pytest.fixture
def map_page(profile: BrowserContext, map_url: str) -> Iterator[Page]:
    """The map on its page; fails on a console error or on a request that leaves this machine."""
    page = profile.new_page()
    page.set_viewport_size({"width": 1200, "height": 900})
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
