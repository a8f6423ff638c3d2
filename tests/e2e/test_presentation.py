"""What is shown to others: the report as a file, and the story."""

import io
import re
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
from playwright.sync_api import Browser, expect
from tabs import settled, violations, wait_until

from analysis.files.shipped import SHIPPED_STATS
from analysis.model.opening import load_model_index
from analysis.stats.store import StatsStore
from app.report.decision import AnswerPair, DecisionReport, PlanRow, decision_html
from app.report.page import report_html, report_of, views_of
from app.report.sentences import TITLES
from app.requested import loaded_of
from pruning.records.cost import LossRow
from pruning.records.verdict import Light, Reason, ShipVerdict
from pruning.requests.ranking import DrawRequest
from pruning.spec.base import validated

pytestmark = [pytest.mark.e2e, pytest.mark.slow]
CHARTS = ("overlap-map", "coverage", "kept-by", "sizes")


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    asked = {"model": "demo", "criterion": "reap", "corpora": ("demo-code",), "sparsity": "50%"}
    request = validated(DrawRequest, asked | {"with_criterion": "man"})
    loaded = loaded_of(request, load_model_index("demo"), StatsStore(SHIPPED_STATS))
    path = tmp_path_factory.mktemp("report") / "report.html"
    path.write_text(report_html(report_of(loaded, views_of(CHARTS), "<b>Title</b>")))
    return path


def test_a_report_opens_and_prints_without_a_network(chromium: Browser, report: Path):
    context = chromium.new_context(offline=True, accept_downloads=True)
    problems, requests = [], []
    tab = context.new_page()
    tab.on("console", lambda message: problems.append(message.text))
    tab.on("pageerror", lambda error: problems.append(str(error)))
    tab.on("request", lambda request: requests.append(request.url))
    tab.goto(report.as_uri())
    tab.locator(".js-plotly-plot .main-svg").first.wait_for()
    assert tab.locator(".js-plotly-plot").count() == len(CHARTS)
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
    assert violations(tab) == {}
    assert [url for url in requests if not url.startswith(("file:", "data:", "blob:"))] == []
    assert problems == []
    # The first page holds what was asked; each figure begins one of its own.
    pdf = tab.pdf(prefer_css_page_size=True)
    assert pdf.count(b"/Type /Page\n") == 1 + len(CHARTS)
    context.close()


def test_the_report_for_decisions_prints_on_one_page(chromium: Browser, tmp_path: Path):
    rows = [LossRow(f"a corpus with a long name {n}", 2.0, 1.0 + n, 1.5) for n in range(10)]
    page = DecisionReport(
        title="Should a model be pruned this way?",
        name="REAP, blend of 3 corpora, global, 50%",
        before=1 << 36,
        after=1 << 35,
        verdict="It adds a lot. " * 12,
        rows=tuple(rows),
        facts={f"fact {n}": "a long value " * 6 for n in range(9)},
        command="moeprune plan " + "--calibrated-on another " * 12,
        answers=AnswerPair("prompt " * 100, "answer " * 100, "answer\n" * 100),
    )
    path = tmp_path / "decision.html"
    context = chromium.new_context(offline=True)
    tab = context.new_page()
    reasons = (Reason("Size", Light.RED, "a long reason", "much larger"),) * 3
    row = PlanRow(page.name, "0123abcd", page.after, "-50%", None, ShipVerdict(reasons))
    for written in (page, replace(page, plans=(row, row))):
        path.write_text(decision_html(written))
        tab.goto(path.as_uri())
        assert violations(tab) == {}
        assert tab.pdf(prefer_css_page_size=True).count(b"/Type /Page\n") == 1
    context.close()


def test_the_story_turns_by_arrows_and_escape_leads_back(open_tab):
    tab = open_tab("explore?criterion=gate-ean")
    tab.get_by_role("link", name="Story", exact=True).click()
    for place, words in enumerate(TITLES.values()):
        if place:
            settled(tab).keyboard.press("ArrowRight")
            expect(tab).to_have_url(re.compile(rf"finding={words.replace(' ', '[+]')}"))
        chosen = tab.get_by_role("radio", name=words)
        expect(chosen).to_be_checked()
        # That of the finding before is gone.
        wait_until(
            tab,
            """() => {
                const charts = document.querySelectorAll("[data-testid=stPlotlyChart]");
                return charts.length === 1
                    && charts[0].getBoundingClientRect().height > 0.55 * 900;
            }""",
        )
        expect(tab.get_by_test_id("stHeader")).to_be_hidden()
    settled(tab).keyboard.press("ArrowLeft")
    expect(tab.get_by_role("radio", name="Where the budget goes")).to_be_checked()
    settled(tab).keyboard.press("Escape")
    expect(tab).to_have_url(re.compile(r"/explore\?.*criterion=gate-ean"))
