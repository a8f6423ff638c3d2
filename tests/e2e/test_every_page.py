"""What holds on every page: headings, keyboard, contrast, accessibility, and charts that fit."""

from itertools import pairwise

import pytest
from playwright.sync_api import Page, expect
from tabs import (
    OF_COLOUR,
    faint_words,
    remains,
    settled,
    unfold,
    violations,
    visit,
    wait_until,
    wide_elements,
)

pytestmark = pytest.mark.e2e

# Address -> how many plotly charts it shows.
PAGES = {
    "": 1,
    "explore": 1,
    "explore?show=Stratification": 2,
    "compare": 0,
    "plan": 2,
    "plan?set=0-2=20&set=3-5=12&locked=1": 2,
    "evaluate": 6,
    "export": 1,
    "story": 1,
}
OF_NEURONS = {"explore?granularity=neuron": 1, "plan?granularity=neuron": 2}
# Where the skip link leads.
MAIN = {
    "explore": ".st-key-explore-map",
    "compare": ".st-key-compare-map",
    "plan": ".st-key-plan-editor",
    "export": ".st-key-export-start",
}
PHONE, DESK = 390, 1440  # pixels
# Charts that are wider than a phone and move within their frames.
WIDE = "[class*=winner-map], [class*=pareto]"
BETWEEN = (800, 1000, 1280)
LEVELS = "[...document.querySelectorAll('h1,h2,h3,h4,h5,h6')].map(each => +each.tagName[1])"
# Tops in pixels, from the top of the element of each chart, of the first thing that is drawn in it.
FIRST_MARKS = """
() => [...document.querySelectorAll(".js-plotly-plot")].map(chart => {
    const drawn = chart.querySelectorAll(
        ".legendtext, .annotation text, .xtick text, .ytick text, image, .trace path");
    const boxes = [...drawn].map(each => each.getBoundingClientRect());
    const top = chart.closest("[data-testid=stElementContainer]").getBoundingClientRect().top;
    return Math.min(...boxes.filter(box => box.height).map(box => box.top)) - top;
})
"""
# What of the page is seen to reach over its right edge and is not moved within a frame of its own.
OVER_THE_EDGE = """
() => {
    const main = document.querySelector("[data-testid=stMain]"), edge = main.clientWidth + 1;
    const inFrame = each => {
        for (let up = each.parentElement; up !== main; up = up.parentElement)
            if (getComputedStyle(up).overflowX !== "visible") return true;
    };
    return [...main.querySelectorAll("*")]
        .filter(each => each.getBoundingClientRect().right > edge && !inFrame(each))
        .map(each => each.dataset.testid || each.className);
}
"""

# Words in charts that lie over each other, by chart.
OVER_EACH_OTHER = """
() => [...document.querySelectorAll(".js-plotly-plot")].flatMap(chart => {
    const words = [...chart.querySelectorAll(".annotation-text")].filter(each => each.textContent);
    const boxes = words.map(each => each.getBoundingClientRect());
    const meet = (a, b) => Math.min(a.right, b.right) - Math.max(a.left, b.left) > 2
        && Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > 2;
    return boxes.flatMap((a, i) => boxes.slice(i + 1).flatMap((b, j) => meet(a, b)
        ? [`${words[i].textContent} | ${words[i + 1 + j].textContent}`] : []));
})
"""
# Words of legends that lie over a plot or the title of a panel, or below an empty band.
MISPLACED = """
() => [...document.querySelectorAll(".js-plotly-plot")].flatMap(chart => {
    const {_size: size, polar} = chart._fullLayout, top = chart.getBoundingClientRect().top;
    const box = each => each.getBoundingClientRect();
    const words = [...chart.querySelectorAll(".legendtext")].filter(each => box(each).height);
    const titles = [...chart.querySelectorAll(".annotation-text")].map(box);
    const first = Math.min(...words.map(each => box(each).top)) - top;
    const wrong = polar ? [] : words.filter(each => box(each).bottom > top + size.t || titles.some(
        title => Math.min(box(each).right, title.right) > Math.max(box(each).left, title.left) + 2
            && Math.min(box(each).bottom, title.bottom) > Math.max(box(each).top, title.top) + 2));
    return [...wrong.map(each => each.textContent), ...(words.length && first > 20 ? [first] : [])];
})
"""
CUT_OFF = """
() => [...document.querySelectorAll("[data-testid=stMetric] *")]
    .filter(each => getComputedStyle(each).textOverflow === "ellipsis"
        && each.scrollWidth > each.clientWidth + 1)
    .map(each => each.textContent)
"""


# What the Tab key stops at in the window; a group of radio buttons is one stop.
FOCUSABLE = """
() => new Set([...document.querySelectorAll(
        "a[href],button,input,select,textarea,summary,[tabindex]")]
    .filter(each => {
        const box = each.getBoundingClientRect();
        return each.tabIndex >= 0 && !each.disabled
            && each.checkVisibility({visibilityProperty: true})
            && box.width && box.height && box.bottom > 0 && box.right > 0
            && box.top < innerHeight && box.left < innerWidth;
    })
    .map(each => each.closest("[role=radiogroup]") || each)).size
"""
# Words in the window besides the navigation and charts; signs of an equation are none.
WORDS = """
() => {
    const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT), words = [];
    const others = "script,style,svg,[role=img]," +
        "[data-testid=stHeader],[data-testid=stIconMaterial]";
    while (texts.nextNode()) {
        const range = document.createRange();
        range.selectNodeContents(texts.currentNode);
        const box = range.getBoundingClientRect(), holder = texts.currentNode.parentElement;
        if (box.width && box.top < innerHeight && box.bottom > 0 && box.right > 0
            && !holder.closest(others) && holder.checkVisibility({visibilityProperty: true}))
            words.push(...texts.currentNode.textContent.match(/\\S*[\\p{L}\\p{N}]\\S*/gu) || []);
    }
    return words.length;
}
"""
# How much of the window moved by itself since the page was opened; at most 0.1 is good.
SHIFTS = """
window.shifts = 0;
new PerformanceObserver(list => {
    for (const shift of list.getEntries()) if (!shift.hadRecentInput) window.shifts += shift.value;
}).observe({type: "layout-shift", buffered: true});
"""
MOST_SHIFT = 0.1
# The first chart of a page is one of these.
FIRST_CHART = ".js-plotly-plot, .st-key-explore-map, .st-key-compare-map, .st-key-plan-editor"
FIRST_VIEWS = ("", "explore", "compare", "plan", "evaluate", "export")
MOST_WORDS = {"": 110, "export": 110}


def charts_of(tab: Page, count: int) -> list[dict[str, float]]:
    """The boxes of the charts of a page, of which there are so many."""
    charts = tab.locator(".js-plotly-plot")
    expect(charts).to_have_count(count)
    for chart in charts.all():
        expect(chart.locator(".main-svg").first).to_be_attached()
    boxes: list[dict[str, float]] = []
    while True:  # until they rest: their widths follow the window
        tab.wait_for_timeout(500)
        before, boxes = boxes, [box for chart in charts.all() if (box := chart.bounding_box())]
        if boxes == before:
            return boxes


def presses_of_tab(tab: Page, main: str) -> int:
    """How many lead from the top of the page by the skip link into its main part."""
    tab.locator(main).wait_for()
    wait_until(tab, "window.moepruneSkip")
    tab.keyboard.press("Tab")
    expect(tab.get_by_role("link", name="Skip to main content")).to_be_focused()
    tab.keyboard.press("Enter")
    expect(tab.locator(main)).to_be_in_viewport()
    inside = f"Boolean(document.activeElement.closest('{main} *, {main} button'))"
    presses = 2
    while not tab.evaluate(inside) and presses < 15:
        tab.keyboard.press("Tab")
        presses += 1
    return presses


def is_readable(tab: Page, page: str, *rules: str) -> None:
    """Headings without gaps, colours that contrast, nothing that breaks a rule of accessibility.

    With `rules`, only these are asked.
    """
    levels = tab.evaluate(LEVELS)
    assert levels[0] == 1, page
    assert all(after <= before + 1 for before, after in pairwise(levels)), page
    assert faint_words(tab) == [], page
    assert violations(settled(tab), *rules) == {}, page


def fits_a_phone(tab: Page, page: str, boxes: list[dict[str, float]]) -> None:
    assert remains(tab, OVER_THE_EDGE) == [], page
    assert remains(tab, OVER_EACH_OTHER) == [], page
    assert remains(tab, MISPLACED) == [], page
    sideways = "document.scrollingElement.scrollWidth - document.scrollingElement.clientWidth"
    assert tab.evaluate(sideways) <= 0, page
    wide = tab.locator(f":is({WIDE}) .js-plotly-plot").count()
    assert sum(box["x"] + box["width"] > PHONE for box in boxes) == wide, page
    for above, below in pairwise(boxes):
        assert above["y"] + above["height"] <= below["y"], page
    if page == "evaluate":
        names_stand_on_one_line(tab)


def first_view_is_calm(tab: Page, page: str) -> None:
    """Few things to focus, few words, and a chart high up."""
    tab.set_viewport_size({"width": DESK, "height": 900})
    charts_of(tab, PAGES[page])
    assert tab.evaluate(FOCUSABLE) <= 18, page
    tops = tab.locator(FIRST_CHART).evaluate_all(
        "charts => charts.map(chart => chart.getBoundingClientRect().top)"
    )
    assert min(tops) < 250, page
    if page in MOST_WORDS:
        assert tab.evaluate(WORDS) <= MOST_WORDS[page], page


def stands_still(tab: Page, page: str, count: int) -> list[dict[str, float]]:
    """What is drawn stays where it is while the rest comes; the boxes of the charts."""
    boxes = charts_of(tab, count)
    assert tab.evaluate("window.shifts") < MOST_SHIFT, page
    return boxes


def fits(tab: Page, page: str, width: int) -> None:
    resize(tab, width)
    assert wide_elements(tab) == [], (page, width)
    assert remains(tab, CUT_OFF) == [], (page, width)
    assert remains(tab, MISPLACED) == [], (page, width)


def resize(tab: Page, width: int) -> None:
    tab.set_viewport_size({"width": width, "height": 1000})


def leave(tab: Page, width: int) -> None:
    """Make the window as wide as the next page wants it; no chart is drawn anew for that."""
    tab.goto("about:blank")
    resize(tab, width)


@pytest.mark.slow  # tests/app/test_pages.py opens every page
def test_every_page_fits_a_phone_and_a_desk_and_is_read_and_used_by_everybody(open_tab, dashboard):
    tab = open_tab(width=PHONE, script=SHIFTS)
    for page, count in (PAGES | OF_NEURONS).items():
        if page:  # Start is open
            leave(tab, PHONE)
            visit(tab, dashboard, page)
        boxes = stands_still(tab, page, count)
        if page in OF_NEURONS or "=" not in page:
            fits_a_phone(tab, page, boxes)
        if page in FIRST_VIEWS:
            first_view_is_calm(tab, page)  # as wide as a desk, until its charts rest
            resize(tab, DESK)
        else:
            resize(tab, DESK)
            charts_of(tab, count)
        fits(tab, page, DESK)
        if page in MAIN:
            assert presses_of_tab(tab, MAIN[page]) < 15, page
        if page != "story":  # which hides the header
            tab.get_by_role("button", name="Share: copy").wait_for()
        is_readable(tab, page)
    resize(tab, DESK)
    libraries = dashboard.loaded_libraries()
    assert any("numpy" in name or "multiarray" in name for name in libraries)
    assert not [name for name in libraries if "torch" in name or "tokenizers" in name]
    link = tab.get_by_test_id("stTopNavLink").first
    link.focus()
    assert "solid 2px" in link.evaluate("link => getComputedStyle(link).outline")
    # On a phone a link of the drawer closes it.
    resize(tab, PHONE)
    tab.get_by_test_id("stExpandSidebarButton").click()
    tab.get_by_test_id("stSidebarNavLink").filter(has_text="Plan").click()
    expect(tab.get_by_role("heading", level=1)).to_have_text("Where should the budget go?")
    expect(tab.get_by_test_id("stSidebarNavLink").first).not_to_be_in_viewport()


@pytest.mark.slow
def test_every_page_is_readable_in_the_dark_and_fits_the_windows_between(open_tab, dashboard):
    tab = open_tab(scheme="dark", width=DESK, script=SHIFTS)
    for page, count in (PAGES | OF_NEURONS).items():
        if page:  # Start is open
            leave(tab, DESK)
            visit(tab, dashboard, page)
        stands_still(tab, page, count)  # what is not drawn yet cannot be too wide
        if page != "story":  # which hides the header
            tab.get_by_role("button", name="Share: copy").wait_for()
        if page in ("plan", "evaluate", "export"):
            assert max(tab.evaluate(FIRST_MARKS)) <= 20, f"an empty band above a chart: {page}"
        # The theme is known from the second run on, and colours fade in.
        wait_until(
            tab,
            """() => [...document.querySelectorAll("style")]
                .some(style => style.textContent.includes("--page: "))""",
        )
        is_readable(tab, page, *OF_COLOUR)
        if page in PAGES and "=" in page:
            continue
        if not page:
            unfold(tab, "Data and jobs")
        for width in (DESK, *BETWEEN):
            fits(tab, page, width)
            if page == "explore" and width == 1000:
                charts = tab.locator('[data-testid="stMain"]').get_by_test_id("stPlotlyChart")
                expect(charts.first).to_be_attached()
                widths = charts.evaluate_all("all => all.map(e => e.getBoundingClientRect().width)")
                assert min(widths) > 500  # below the map


def names_stand_on_one_line(tab: Page) -> None:
    """The names in the tables of losses and of right answers, of which nothing is hidden."""
    for width in (1024, 390):
        resize(tab, width)
        hidden = (
            "tables => tables.map(table => table.parentElement)"
            ".map(frame => frame.scrollWidth - frame.clientWidth)"
        )
        tables = tab.locator("[data-testid=stTable] table").evaluate_all(hidden)
        assert len(tables) == 2
        assert max(tables) <= 0
        lines = "names => names.map(each => each.getClientRects().length)"
        assert set(tab.locator("[data-testid=stTable] tbody th p").evaluate_all(lines)) == {1}
