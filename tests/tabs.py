"""What a person does on a page, for the tests that drive the dashboard in a browser.

Streamlit redraws a page when its script runs again, also by itself shortly after the first run: a
list that opened in between is closed. So everything here waits until the script rests.
"""

import re
import time
from contextlib import suppress
from pathlib import Path

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Locator, Page, TimeoutError, expect

from pruning.spec.base import flat_fields
from pruning.spec.spec import PlanSpec

JOB_MS = 300_000
OPENINGS = 5
OPEN_MS = 6_000
LOOKS = 200
_WIDE = """
() => [...document.querySelectorAll('[data-testid="stMain"] *')]
    .filter(e => e.getBoundingClientRect().right > window.innerWidth + 1
        && getComputedStyle(e).position !== 'absolute' && !e.closest('svg')
        && e.checkVisibility()
        && !e.parentElement.closest('[data-testid="stDataFrame"]'))
    .map(e => e.outerHTML.slice(0, 120))
"""
_CONTRAST = (Path(__file__).parent / "e2e" / "contrast.js").read_text("utf-8")


def settled(tab: Page) -> Page:
    """The tab, once its script does not run."""
    tab.locator('[data-testid="stApp"][data-test-script-state="notRunning"]').wait_for()
    return tab


def naming_a_plan(path: str) -> str:
    """The address with the plan of defaults if it names none; that of Start may stay bare."""
    page, _, query = path.partition("?")
    if not page or any(f"{name}=" in query for name in (*flat_fields(PlanSpec), "opened")):
        return path
    return f"{page}?{query}&opened=1" if query else f"{page}?opened=1"


def visit(tab: Page, dashboard, path: str) -> None:
    """Another address in the same browser, which has the scripts at hand by now."""
    tab.goto(f"{dashboard.url}/{naming_a_plan(path)}")
    tab.get_by_role("heading", level=1).wait_for()
    settled(tab)


def go(tab: Page, page: str, title: str) -> None:
    """Another page by its link on top."""
    tab.get_by_role("link", name=page, exact=True).first.click()
    tab.get_by_role("heading", level=1, name=title).wait_for()
    settled(tab)


def metric(tab: Page, label: str) -> Locator:
    return tab.get_by_test_id("stMetric").filter(has_text=label).get_by_test_id("stMetricValue")


def is_ranked_by(tab: Page, criterion: str) -> None:
    """Wait until the plan in the pinned line is of this criterion."""
    plan = tab.locator(".st-key-plan-bar strong").first
    expect(plan).to_have_text(re.compile(rf"^{re.escape(criterion)}, "))


def unfold(tab: Page, label: str) -> None:
    """Open a folded part."""
    settled(tab).get_by_text(label, exact=True).click()
    settled(tab)


def pick(tab: Page, label: str, option: str) -> None:
    """An option of the list named ``label``, which is opened again if a redraw closed it.

    Its beginning is typed, for a long list draws only the options that are in sight.
    """
    box = tab.get_by_role("combobox", name=re.compile(label))
    wanted = tab.get_by_role("option", name=option, exact=True)
    for _ in range(OPENINGS - 1):
        settled(tab)
        open_list(box, option)
        with suppress(TimeoutError):
            wanted.click(timeout=OPEN_MS)
            return
    settled(tab)
    open_list(box, option)
    wanted.click()


def open_list(box: Locator, option: str) -> None:
    if box.get_attribute("aria-expanded") != "true":
        box.click()
    box.fill(option)


def choose(tab: Page, key: str, option: str) -> None:
    """One of the buttons of a segmented control, by the key of the control."""
    group = tab.locator(f".st-key-{key}")
    if group.locator("xpath=ancestor::*[@data-testid='stSidebar']").count():
        open_plan(tab)
    group.get_by_role("radio", name=option, exact=True).click()
    expect(group.get_by_role("radio", name=option, exact=True)).to_be_checked()


def open_plan(tab: Page) -> None:
    """Unfold the model and the plan, if they are folded."""
    opener = settled(tab).get_by_test_id("stExpandSidebarButton")
    if opener.count():
        opener.click()
        expect(tab.get_by_test_id("stSidebar").get_by_text("MoE Prune Studio")).to_be_in_viewport()


def rank_by(tab: Page, name: str) -> None:
    """Another criterion by its list."""
    box = settled(tab).get_by_role("combobox", name="Criterion", exact=True)
    open_list(box, name)
    tab.get_by_role("option", name=re.compile(rf"^{re.escape(name)}\b")).first.click()


def slide(tab: Page, key_of_widget: str, key: str) -> None:
    """Press a key on a slider, by the key of the widget."""
    slider = settled(tab).locator(f".st-key-{key_of_widget}").get_by_role("slider")
    if slider.locator("xpath=ancestor::*[@data-testid='stSidebar']").count():
        open_plan(tab)
    before = slider.get_attribute("aria-valuenow")
    slider.press(key)
    expect(slider).not_to_have_attribute("aria-valuenow", before or "")


def job(tab: Page, title: str) -> Locator:
    """The newest job of this title."""
    return tab.locator('[class*="st-key-job-"]').filter(has_text=title).first


def remains(tab: Page, script: str) -> list[str]:
    """What a script finds at fault once the page has had its time: all follows a window later."""
    for _ in range(LOOKS):
        found: list[str] = settled(tab).evaluate(script)
        if not found:
            break
        tab.wait_for_timeout(250)
    return found


def wait_until(tab: Page, condition: str, arg: object = None) -> None:
    """Wait until a condition in JavaScript holds.

    Playwright's own wait runs in the page, whose content security policy forbids it to evaluate.
    """
    deadline = time.monotonic() + 30
    while not tab.evaluate(condition, arg):
        assert time.monotonic() < deadline, condition
        tab.wait_for_timeout(100)


def wide_elements(tab: Page) -> list[str]:
    """What is seen wider than the window; a table that is wider scrolls within itself.

    What is folded is left out: it gets its width when it is unfolded.
    """
    return remains(tab, _WIDE)


def faint_words(tab: Page) -> list[str]:
    """Words whose contrast is below 4.5:1, by arithmetic on rendered colours."""
    wait_until(tab, "document.getAnimations().every(a => a.playState !== 'running')")
    found: list[str] = tab.evaluate(_CONTRAST)
    return found


# The rules of accessibility that ask for colours; others hold in the dark if they do in the light.
OF_COLOUR = ("color-contrast", "link-in-text-block")


def violations(tab: Page, *rules: str) -> dict[str, list[str]]:
    """Rules of accessibility, all or these, that are broken seriously -> by which elements."""
    options: dict[str, object] = {"resultTypes": ["violations"]}
    if rules:
        options["runOnly"] = {"type": "rule", "values": rules}
    return {
        violation["id"]: [node["html"][:200] for node in violation["nodes"]]
        for violation in Axe().run(tab, options=options).response["violations"]
        if violation["impact"] in ("serious", "critical")
    }
