"""What is shown to others: the report as a file, presentation mode, and the tour."""

import io
import re
from contextlib import suppress
from pathlib import Path

import pandas as pd
import pytest
from playwright.sync_api import Browser, Page, TimeoutError, expect
from tabs import choose, faint_words, go, settled, violations

from analysis.model import load_model_index
from analysis.stats.store import SHIPPED_STATS, StatsStore
from app.loaded import loaded_of
from app.report.decision import AnswerPair, DecisionReport, LossRow, decision_html
from app.report.page import report_html, report_of, views_of
from app.widgets.tour import STEPS
from pruning.planning.comparing import pair_of
from pruning.requests.base import validated
from pruning.requests.ranking import DrawRequest

pytestmark = [pytest.mark.e2e, pytest.mark.slow]
CHARTS = ("overlap-map", "coverage", "kept-by", "sizes")


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    asked = {"model": "demo", "criterion": "reap", "corpora": ("demo-code",), "sparsity": "50%"}
    request = validated(DrawRequest, asked | {"with_criterion": "man"})
    pair = pair_of(request, request.plan)
    loaded = loaded_of(pair, load_model_index("demo"), StatsStore(SHIPPED_STATS))
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
        command="moeprune plan " + "--corpus another " * 12,
        answers=AnswerPair("prompt " * 100, "answer " * 100, "answer\n" * 100),
    )
    path = tmp_path / "decision.html"
    path.write_text(decision_html(page))
    context = chromium.new_context(offline=True)
    tab = context.new_page()
    tab.goto(path.as_uri())
    assert violations(tab) == {}
    assert tab.pdf(prefer_css_page_size=True).count(b"/Type /Page\n") == 1
    context.close()


def title(tab: Page, text: str) -> None:
    tab.get_by_role("heading", level=1, name=text).wait_for()
    settled(tab)


def turn(tab, key, heading):
    """Another page by a key, pressed again where a page that was still drawn did not hear it."""
    for _ in range(4):
        settled(tab).keyboard.press(key)
        with suppress(TimeoutError):
            tab.get_by_role("heading", level=1, name=heading).wait_for(timeout=8_000)
            break
    title(tab, heading)


def test_presentation_hides_the_bars_and_is_part_of_the_address(open_tab):
    tab = open_tab("explore?criterion=gate-ean")
    sidebar = tab.get_by_test_id("stSidebar")
    expect(sidebar).to_be_visible()
    size = "getComputedStyle(document.documentElement).fontSize"
    usual = float(tab.evaluate(size).removesuffix("px"))
    of_map = "canvas => canvas.getBoundingClientRect().height"
    height = settled(tab).locator("canvas.base").first.evaluate(of_map)
    tab.get_by_text("Presentation mode").click()
    expect(sidebar).to_be_hidden()
    expect(tab.get_by_role("link", name="Compare", exact=True)).to_have_count(0)
    expect(tab).to_have_url(re.compile(r"explore\?criterion=gate-ean&present=true$"))
    assert float(tab.evaluate(size).removesuffix("px")) > 1.2 * usual
    # Who follows the link sees the same, and the choices hold on the next pages.
    other = open_tab(tab.url.split("/", 3)[3])
    expect(other.get_by_test_id("stSidebar")).to_be_hidden()
    # The map is larger, also its words, and is clicked where it is seen.
    canvas = settled(other).locator("canvas.base").first
    assert canvas.evaluate(of_map) == pytest.approx(1.5 * height, abs=2)
    canvas.hover(position={"x": 60, "y": 1.5 * (20 + 2.5 * 28)})
    readout = other.locator(".expert-map").get_by_role("status")
    expect(readout).to_contain_text(re.compile("^layer 2 "))
    # Of all controls the sparsity stays, and answers.
    expect(other.locator(".st-key-plan-controls")).to_be_hidden()
    expect(settled(other).locator(".st-key-sparsity")).to_be_in_viewport()
    assert faint_words(settled(other)) == []
    # It covers nothing: the page ends above it.
    page, strip = (
        other.locator(name).bounding_box() for name in ("[data-testid=stMain]", ".st-key-sparsity")
    )
    assert page["y"] + page["height"] <= strip["y"]
    slider = other.locator(".st-key-sparsity").get_by_role("slider")
    slider.press("ArrowLeft")
    expect(other.locator(".st-key-plan-bar")).to_contain_text("45%")
    slider.press("ArrowRight")
    expect(other.locator(".st-key-plan-bar")).to_contain_text("50%")
    slider.blur()  # it would take the keys below
    expect(other.locator(".st-key-plan-bar")).to_contain_text("Gate-weighted EAN")
    turn(other, "PageDown", "Where do two recipes disagree?")
    expect(other).to_have_url(re.compile("present=true"))
    turn(other, "PageUp", "Which experts does each criterion keep?")
    expect(other.locator(".st-key-plan-bar")).to_contain_text("Gate-weighted EAN")
    settled(other).keyboard.press("Escape")
    expect(other.get_by_test_id("stSidebar")).to_be_visible()
    expect(other).to_have_url(re.compile(r"explore\?criterion=gate-ean$"))


def test_the_tour_stays_while_the_page_is_used_and_scrolls_to_what_it_names(open_tab):
    tab = open_tab("explore?criterion=gate-ean")
    tab.get_by_role("button", name="Guided tour").click()
    panel = tab.get_by_role("region", name="Guided tour")
    for place, step in enumerate(STEPS, start=1):
        expect(panel).to_contain_text(f"{place} of {len(STEPS)}: {step.title}")
        expect(tab).to_have_url(re.compile(rf"/{step.page}(\?|$)"))
        if step.target:
            expect(settled(tab).locator(step.target).first).to_be_in_viewport()
        assert faint_words(settled(tab)) == []
        if step.target == ".st-key-explore-map":
            # What it asks for: another exponent, and then an expert.
            choose(tab, "beta", "2")
            expect(tab.locator(".st-key-plan-bar")).to_contain_text("S(0,1,2)")
            settled(tab).locator(f"{step.target} canvas").first.click(position={"x": 90, "y": 60})
            expect(tab).to_have_url(re.compile(r"[?&]expert="))
            expect(panel).to_contain_text(step.title)
        if place < len(STEPS):
            entries = settled(tab).evaluate("history.length")
            tab.keyboard.press("Control+ArrowRight")
            expect(panel).to_contain_text(f"{place + 1} of {len(STEPS)}")
            moved = STEPS[place].page != step.page
            assert settled(tab).evaluate("history.length") == entries + moved
    # Who walks on alone keeps the panel, and Escape leaves it where one is.
    go(tab, "Plan", "Where should the budget go?")
    expect(panel).to_contain_text(STEPS[-1].title)
    settled(tab).keyboard.press("Escape")
    expect(panel).to_have_count(0)
    expect(tab).to_have_url(re.compile(r"/plan\?.*criterion=0%2C1%2C2"))
