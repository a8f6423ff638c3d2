"""Names that mean harm, in a real browser: shown as they are written, and nothing is fetched."""

import json
import shutil
from pathlib import Path

import pytest
from dashboards import Dashboard, running
from playwright.sync_api import expect
from tabs import open_plan, settled, visit

from analysis.files.shipped import DEMO_CHECKPOINT, SHIPPED_STATS
from pruning.requests.benchmark import ImportRequest
from pruning.spec.base import validated
from pruning.tasks.benchmark import import_results

pytestmark = pytest.mark.e2e
PIXEL = "![pixel](http://127.0.0.1:9/pixel.png)"
NAME = f"{PIXEL}<img src=http://127.0.0.1:9/tag.png onerror=alert(1)>[link](http://evil.example)"
PAGES = (
    "explore",
    "explore?tab=Corpora&corpora.view=Blend",
    "explore?tab=Advice",
    "compare",
    "export",
)
RESULTS = "evaluate?results=Benchmarks"


def take_in_hostile_results(stats_dir: Path) -> None:
    """Results of another tool whose task, metric, candidate and file are named so."""
    scores = {f"{NAME},none": 0.75, f"{NAME}_stderr,none": 0.01, "alias": NAME}
    content = {"results": {NAME: scores}, "lm_eval_version": NAME}
    stats_dir.mkdir(exist_ok=True)
    file = stats_dir / f"{NAME.replace('/', ':')[:200]}.json"
    file.write_text(json.dumps(content))
    asked = {"model": str(DEMO_CHECKPOINT), "stats_dir": stats_dir, "candidate": NAME[:200]}
    import_results(validated(ImportRequest, {**asked, "files": (file,)}))


@pytest.fixture(scope="module")
def dashboard(tmp_path_factory):
    with running(Dashboard(tmp_path_factory.mktemp("dashboard"))) as dashboard:
        yield dashboard


@pytest.fixture(scope="module")
def hostile(dashboard) -> None:
    """A calibration of the demo on a text of that name, as somebody could hand one over."""
    (shipped,) = SHIPPED_STATS.glob("demo-demo-stories-*")
    copy = dashboard.root / "stats" / "demo-hostile"
    shutil.copytree(shipped, copy)
    path = Path(copy / "manifest.json")
    manifest = json.loads(path.read_text())
    manifest["corpora"][0]["name"] = NAME
    manifest["run_id"] = "demo-hostile"
    path.write_text(json.dumps(manifest))
    take_in_hostile_results(dashboard.root / "stats")


@pytest.mark.slow  # tests/app/test_hostile_names.py
@pytest.mark.usefixtures("hostile")
@pytest.mark.parametrize("pages", [("", "explore"), (*PAGES[1:], RESULTS)])
def test_a_hostile_name_is_text_on_every_page(open_tab, dashboard, pages):
    # The fixture notes every request, also one that the page's policy forbids.
    tab = open_tab()
    for path in pages:
        if path:
            visit(tab, dashboard, path)
        if path.startswith("explore"):
            tab.locator("canvas.base").first.wait_for()
        settled(tab)
        for element in ("img[src*='pixel']", "img[src*='tag']"):
            expect(tab.locator(element)).to_have_count(0)
        # An address becomes a link by itself; none hides behind other words.
        for link in tab.locator("a[href*='evil.example']").all():
            assert (link.text_content() or "").strip().rstrip("/") == "http://evil.example"
        if path == RESULTS:
            expect(tab.get_by_text("Original model").first).to_be_visible()
            expect(tab.get_by_test_id("stDataFrame").first).to_be_visible()
        if path == "explore":
            open_plan(tab)
            sidebar = tab.get_by_test_id("stSidebar")
            expect(sidebar.get_by_role("radio", name=NAME)).to_be_visible()
