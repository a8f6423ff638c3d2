"""Pinned plans in a browser: the button, the table, Back and reload; the bar moves nothing."""

import re

import pytest
from playwright.sync_api import Page, expect
from tabs import choose, go, settled

pytestmark = pytest.mark.e2e
TOP = "() => document.querySelector('.st-key-explore-map').getBoundingClientRect().top"
NOTE = "small <b>and</b> *safe*"


def choose_row(tab: Page, table: str, row: int) -> None:
    """The box before a row of a table, which is painted on a canvas."""
    frame = tab.locator(f'[class*="st-key-{table}"] .dvn-scroller').first
    frame.evaluate("frame => frame.scrollIntoView({block: 'center'})")
    settled(tab)
    frame.click(position={"x": 16, "y": 52 + 35 * row})


@pytest.mark.slow  # tests/app/test_pins.py has the same without a browser
def test_pins_survive_pages_reload_and_back(open_tab):
    tab = open_tab("explore?criterion=ean&corpora=demo-code")
    bar = tab.locator(".st-key-plan-bar")
    bar.get_by_role("button", name="Pin", exact=True).click()
    expect(bar.get_by_role("button", name="Unpin")).to_be_visible()
    expect(tab).to_have_url(re.compile("pinned=plan%3D42d8d1d2"))
    # What the last click changed moves nothing.
    top = settled(tab).evaluate(TOP)
    choose(tab, "alpha", "1")
    expect(bar).to_contain_text("+6 / -6 experts, loss +0.03")
    assert settled(tab).evaluate(TOP) == top
    go(tab, "Compare", "Where do two recipes disagree?")
    expect(bar).not_to_contain_text("/ -6 experts")
    choose_row(tab, "pins-table", 0)
    tab.get_by_role("button", name="Compare with it").click()
    expect(tab.get_by_text("They decide 94% of the experts alike")).to_be_visible()
    note = settled(tab).get_by_role("textbox", name="Note")
    note.fill(NOTE)
    note.press("Enter")
    expect(tab).to_have_url(re.compile("note%3Dsmall"))
    settled(tab).reload()
    expect(tab.get_by_text("They decide 94% of the experts alike")).to_be_visible()
    settled(tab).go_back()
    expect(tab).not_to_have_url(re.compile("note%3Dsmall"))
    expect(tab).to_have_url(re.compile("pinned=plan%3D42d8d1d2"))
    # A row of the experts that only one keeps shows the expert's card.
    choose_row(tab, "table-disagreements", 0)
    expect(tab.locator(".st-key-expert-card")).to_be_visible()
    expect(tab).to_have_url(re.compile(r"expert=\d+\.\d+"))
