"""What is shown to others: the report as a file, in a browser without any network."""

import io
from pathlib import Path

import pandas as pd
import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser

from analysis.model import load_model_index
from analysis.store import SHIPPED_STATS, StatsStore
from app.comparing import compare_request
from app.plots.scene import Scene
from app.report.contents import report_of, views_of
from app.report.page import report_html

pytestmark = pytest.mark.e2e
VIEWS = ("overlap-map", "coverage", "kept-by", "sizes")


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    request = compare_request(
        {"model": "demo", "criterion": "reap", "corpora": ("demo-code",), "sparsity": "50%"},
        {"criterion": "man"},
    )
    scene = Scene(request, load_model_index("demo"), StatsStore(SHIPPED_STATS))
    path = tmp_path_factory.mktemp("report") / "report.html"
    path.write_text(report_html(report_of(scene, views_of(VIEWS), "<b>Title</b>")))
    return path


def test_a_report_opens_without_a_network(chromium: Browser, report: Path):
    context = chromium.new_context(offline=True, accept_downloads=True)
    problems, requests = [], []
    tab = context.new_page()
    tab.on("console", lambda message: problems.append(message.text))
    tab.on("pageerror", lambda error: problems.append(str(error)))
    tab.on("request", lambda request: requests.append(request.url))
    tab.goto(report.as_uri())
    tab.locator(".js-plotly-plot .main-svg").first.wait_for()
    assert tab.locator(".js-plotly-plot").count() == len(VIEWS)
    assert tab.get_by_role("heading", level=1).inner_text() == "<b>Title</b>"
    # Every figure is drawn to its full width and says in words what it shows.
    for figure in tab.locator("figure").all():
        assert figure.bounding_box()["width"] > 700
        assert len(figure.get_attribute("aria-label")) > 30
    tab.get_by_text("Numbers").nth(2).click()
    with tab.expect_download() as download:
        tab.get_by_role("link", name="All 192 rows as CSV").click()
    table = pd.read_csv(io.BytesIO(Path(download.value.path()).read_bytes()))
    assert len(table) == 192
    serious = [
        violation["id"]
        for violation in Axe().run(tab).response["violations"]
        if violation["impact"] in ("serious", "critical")
    ]
    assert serious == []
    assert [url for url in requests if not url.startswith(("file:", "data:", "blob:"))] == []
    assert problems == []
    context.close()


def test_a_report_prints_a_figure_a_page(chromium: Browser, report: Path):
    context = chromium.new_context(offline=True)
    tab = context.new_page()
    tab.goto(report.as_uri())
    tab.locator(".js-plotly-plot .main-svg").first.wait_for()
    pdf = tab.pdf(prefer_css_page_size=True)
    # The first page holds what was asked; each figure begins one of its own.
    assert pdf.count(b"/Type /Page\n") == 1 + len(VIEWS)
    context.close()
