"""The story as a file: opened without a server and a network, and compared with the package."""

import json
import re
from itertools import product
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from playwright.sync_api import Browser, expect
from tabs import faint_words, violations

from analysis.files.shipped import SHIPPED_STATS
from analysis.model.opening import load_model_index
from analysis.stats.store import StatsStore
from app.charts.listing import CHARTS
from app.report.story_page import StoryPage, story_html
from app.requested import loaded_of
from pruning.requests.ranking import DrawRequest
from pruning.spec.base import validated

pytestmark = pytest.mark.e2e
STORY = Path(__file__).parents[2] / "docs/story.html"
EXPONENTS = [v for v in product((0, 1), (0, 1, 2), (0, 1, 2)) if v != (1, 0, 0)]


def data_of(text):
    return json.loads(re.search(r' id="data">(.*?)</script>', text, re.DOTALL)[1])


@pytest.fixture(scope="module")
def told():
    """The data of the demo's file: slide -> its data."""
    return {slide["name"]: slide for slide in data_of(STORY.read_text("utf-8"))["slides"]}


@pytest.fixture
def open_file(chromium: Browser):
    """Open a file without a network; in the end nothing was asked for, and nothing went wrong."""
    contexts, problems, requests = [], [], []

    def _open(path, *, scheme="light", width=1440, end=""):
        contexts.append(
            chromium.new_context(
                offline=True, color_scheme=scheme, viewport={"width": width, "height": 900}
            )
        )
        tab = contexts[-1].new_page()
        tab.on("console", lambda message: problems.append(message.text))
        tab.on("pageerror", lambda error: problems.append(str(error)))
        tab.on("dialog", lambda dialog: (problems.append(dialog.message), dialog.dismiss()))
        tab.on("request", lambda request: requests.append(request.url))
        tab.goto(f"{path.as_uri()}{end}")
        expect(tab.locator("#sentence")).not_to_be_empty()
        return tab

    yield _open
    for context in contexts:
        context.close()
    assert problems == []
    assert [url for url in requests if not url.startswith(("file:", "data:"))] == []


def test_the_browser_ranks_as_the_statistics_say(open_file, told):
    (path,) = SHIPPED_STATS.glob("demo-demo-code-*/experts.parquet")
    sums, tab = pd.read_parquet(path), open_file(STORY)
    for b, alpha, beta in EXPONENTS:
        column = f"g0_f{beta}" if not alpha else f"applied_g{alpha}_f{beta}"
        total = sums["num_tokens"] if not (alpha or beta) else sums[column]
        score = (total / sums["num_tokens"].where(sums["num_tokens"] > 0)).fillna(0) if b else total
        rows = score.to_numpy().reshape(6, 32)
        orders = np.lexsort((np.broadcast_to(np.arange(32), rows.shape), -rows))
        assert tab.evaluate("v => window.story.ordersBy(v)", [b, alpha, beta]) == orders.tolist()
    own = tab.evaluate("text => window.story.ordersIn(text)", told["criteria"]["order"])
    assert own == tab.evaluate("window.story.ordersBy([1, 1, 1])")


def test_the_sentence_of_the_exponents_counts_what_they_keep(open_file, told):
    tab, slide = open_file(STORY, end="#criteria/25"), told["criteria"]
    for name, value in (("b", 1), ("\u03b2", 2)):
        tab.get_by_role("group", name=name, exact=True).get_by_text(str(value)).click()
    reap, other = (tab.evaluate(f"window.story.ordersBy({v})") for v in ([1, 1, 1], [1, 0, 2]))
    count = sum(len({*mine[:24]} - {*own[:24]}) for mine, own in zip(other, reap, strict=True))
    instead = slide["steps"]["25"]["1,0,2"]["instead"]
    said = f"MSAN keeps {count} experts that REAP drops{instead}."
    expect(tab.locator("#sentence")).to_have_text(said)
    tab.get_by_role("group", name="\u03b2", exact=True).get_by_text("0").click()
    expect(tab.locator("#sentence")).to_have_text(slide["same"])


def test_gaps_and_spreads_are_those_of_the_chart(open_file, told):
    asked = {"model": "demo", "criterion": "reap", "corpora": ["demo-code"], "sparsity": "25%"}
    request = validated(DrawRequest, asked)
    loaded = loaded_of(request, load_model_index("demo"), StatsStore(SHIPPED_STATS))
    table = CHARTS["stratification"].draw(loaded).table
    tab = open_file(STORY, end="#stratification/25")
    for panel in told["stratification"]["panels"]:
        found = tab.evaluate("panel => window.story.panelOf(panel)", panel)
        of = {measure["words"]: measure["rows"] for measure in found["measures"]}
        values = found["values"]
        assert [min(row) for row in values] == [0] * 6
        assert [max(row) for row in values] == [1] * 6
        rows = table[table["panel"] == panel["name"]].drop_duplicates("layer")
        for words, column in (
            ("spread", "spread"),
            ("gap at the cut", "gap"),
            ("spread, random weights", "random_spread"),
            ("gap, random weights", "random_gap"),
        ):
            assert of[words] == pytest.approx(rows[column].tolist(), rel=1e-5), words


def test_a_keyboard_walks_through_all_findings(open_file, told):
    tab = open_file(STORY)
    names = [name for name, slide in told.items() if "missing" not in slide]
    assert len(names) == 6
    for place, name in enumerate(names):
        if place:
            tab.keyboard.press("ArrowRight")
        expect(tab.locator("nav [aria-current]")).to_have_attribute("href", f"#{name}")
        expect(tab.locator("h2")).to_have_text(told[name]["title"])
        expect(tab.locator("#place")).to_have_text(f"{place + 1} / 6")
        assert tab.locator("figure svg[role=img]").first.get_attribute("aria-label")
    tab.keyboard.press("ArrowRight")
    expect(tab.locator("#place")).to_have_text("6 / 6")
    tab.keyboard.press("PageUp")
    expect(tab.locator("#place")).to_have_text("5 / 6")
    # The link that skips to the sentence turns no page.
    tab.locator("a[href='#sentence']").focus()
    tab.keyboard.press("Enter")
    expect(tab).to_have_url(re.compile("#sentence$"))
    expect(tab.locator("#place")).to_have_text("5 / 6")
    # In the slider arrows are its own.
    slider = tab.get_by_role("slider")
    slider.focus()
    tab.keyboard.press("ArrowRight")
    expect(slider).to_have_attribute("aria-valuetext", "55%")
    expect(tab.locator("#sentence")).to_have_text(told["budget"]["steps"]["55"][0]["sentence"])
    expect(tab.locator("#sentence")).to_have_attribute("aria-live", "polite")
    # So are those of radio buttons; what has the focus is framed.
    tab.keyboard.press("Tab")
    tab.keyboard.press("ArrowRight")
    expect(tab.locator("#sentence")).to_have_text(told["budget"]["steps"]["55"][1]["sentence"])
    frame = "getComputedStyle(document.activeElement.nextElementSibling).outlineStyle"
    assert tab.evaluate(frame) == "solid"
    tab.get_by_text("Numbers").click()
    expect(tab.locator("#tables tbody tr")).to_have_count(8)


@pytest.mark.parametrize(("scheme", "width"), [("light", 390), ("dark", 1440)])
def test_every_finding_can_be_read(open_file, told, scheme, width):
    tab = open_file(STORY, scheme=scheme, width=width)
    for name in told:
        tab.evaluate("name => window.story.turn(name)", name)
        tab.locator("#numbers").evaluate("numbers => { numbers.open = true }")
        expect(tab.locator("#tables table").first).to_be_visible()
        assert faint_words(tab) == []
        assert tab.evaluate("document.documentElement.scrollWidth") <= width
    assert violations(tab) == {}


def test_each_finding_prints_on_a_page(open_file):
    assert open_file(STORY).pdf(prefer_css_page_size=True).count(b"/Type /Page\n") == 6


def test_names_that_mean_harm_are_text(open_file, told, tmp_path):
    name = "</script><img src=x onerror=alert(1)>{count}<!--"
    text = STORY.read_text("utf-8")
    story = json.loads(json.dumps(data_of(text)).replace("demo-stories", name))
    page = StoryPage(name, story | {"model": name}, {"Shape": name, name: name}, name, name)
    assert len(page.missing) == 0
    html = story_html(page)
    assert "<img src=x" not in html
    path = tmp_path / "story.html"
    path.write_text(html, encoding="utf-8")
    tab = open_file(path)
    assert name in tab.get_by_role("heading", level=1).inner_text()
    for slide in told:
        tab.evaluate("name => window.story.turn(name)", slide)
        tab.locator("#numbers").evaluate("numbers => { numbers.open = true }")
    tab.evaluate("name => window.story.turn(name)", "corpora")
    expect(tab.locator("#controls")).to_contain_text(name)
    assert tab.locator("img").count() == 0
