"""The dashboard in a real browser: a server, and pages that watch what they load."""

from collections.abc import Iterator

import pytest
from dashboards import Dashboard, running
from playwright.sync_api import BrowserContext, ConsoleMessage, Page, expect
from tabs import naming_a_plan, settled

# Nothing waits longer than it must; the machine may be busy.
PATIENCE_MS = 120_000
expect.set_options(timeout=PATIENCE_MS)


@pytest.fixture(scope="session")
def shared_dashboard(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dashboard]:
    with running(Dashboard(tmp_path_factory.mktemp("dashboard"))) as dashboard:
        yield dashboard


@pytest.fixture(scope="module")
def dashboard(shared_dashboard: Dashboard) -> Dashboard:
    """The server of all tests; a module that changes what pages show has one of its own."""
    return shared_dashboard


@pytest.fixture
def open_tab(profile: BrowserContext, dashboard: Dashboard):
    """Open a page without cookies, stored state or history: the first tab in `profile`, more in
    browsers of their own, as of other people.

    In the end: no request left this machine, and nothing went wrong in the browser.
    """
    tabs, errors, hosts = [], [], set()

    def note(message: ConsoleMessage) -> None:
        if message.type == "error" and not is_probe(message.location["url"]):
            errors.append(f"{message.text} {message.location['url']}")

    def _open(
        path: str = "", *, scheme: str = "light", width: int = 1280, script: str = ""
    ) -> Page:
        tab = profile.new_page() if not tabs else profile.browser.new_page(locale="en-GB")
        tabs.append(tab)
        tab.set_default_timeout(PATIENCE_MS)
        tab.set_viewport_size({"width": width, "height": 1000})
        # Without motion: a picture of the map is then that of its last order.
        tab.emulate_media(color_scheme=scheme, reduced_motion="reduce")
        tab.on("console", note)
        tab.on("pageerror", lambda error: errors.append(str(error)))
        tab.on("request", lambda request: hosts.add(host_of(request.url)))
        tab.on("websocket", lambda socket: hosts.add(host_of(socket.url)))
        tab.add_init_script(script)  # of every page that it visits
        tab.goto(f"{dashboard.url}/{naming_a_plan(path)}")
        tab.get_by_role("heading", level=1).wait_for()
        return settled(tab)

    yield _open
    blank, *used = profile.pages
    for tab in {*tabs, *used}:
        tab.close()
    profile.clear_cookies()
    stored = {"origin": dashboard.url, "storageTypes": "local_storage,indexeddb"}
    profile.new_cdp_session(blank).send("Storage.clearDataForOrigin", stored)
    assert errors == []
    assert hosts <= {"127.0.0.1", ""}  # blob: and data: have no host


def host_of(url: str) -> str:
    return url.split("/")[2].split(":")[0]


def is_probe(url: str) -> bool:
    """Streamlit looks for its server below the page's own path first, and finds nothing there."""
    pages = ("explore", "compare", "plan", "evaluate", "export", "story")
    return any(f"/{page}/_stcore/" in url for page in pages)
