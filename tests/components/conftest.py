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


@pytest.fixture(scope="module")
def map_tab(profile: BrowserContext) -> Iterator[Page]:
    tab = profile.new_page()
    yield tab
    tab.close()


@pytest.fixture
def map_page(map_tab: Page, map_url: str, request: pytest.FixtureRequest) -> Iterator[Page]:
    """The map on its page, or on that of a query given as its parameter; nothing was done to it.

    It fails on a console error or on a request that leaves this machine. The page is opened once
    for all tests that ask for the same one: a button makes a new map of the same scripts.
    """
    errors, hosts = [], set()
    heard = {
        "console": lambda line: errors.append(line.text) if line.type == "error" else None,
        "pageerror": lambda error: errors.append(str(error)),
        "request": lambda request: hosts.add(request.url.split("/")[2].split(":")[0]),
    }
    for event, hear in heard.items():
        map_tab.on(event, hear)
    map_tab.set_viewport_size({"width": 1200, "height": 900})
    map_tab.emulate_media(reduced_motion="null")
    url = f"{map_url}/{getattr(request, 'param', '')}"
    if map_tab.url == url:
        turn = int(map_tab.get_by_text("turn ").inner_text().removeprefix("turn ")) + 1
        map_tab.mouse.move(0, 0)
        # By a key: a pointer left over the button is over the map for a moment as it is drawn,
        # and a pointer that leaves the map takes the cursor of the keys with it.
        map_tab.get_by_role("button", name="Begin again").press("Enter")
    else:
        turn = 0
        map_tab.goto(url)
    map_tab.get_by_text(f"turn {turn}", exact=True).wait_for()
    map_tab.get_by_role("application").wait_for()
    map_tab.get_by_text("python says None, calls 0").wait_for()
    yield map_tab
    for event, hear in heard.items():
        map_tab.remove_listener(event, hear)
    assert errors == []
    assert hosts <= {"127.0.0.1", ""}  # blob: and data: have no host
