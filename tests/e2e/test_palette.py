"""Keys for all: the list of them, the palette, and the link that Share copies."""

import re

import pytest
from playwright.sync_api import expect
from tabs import settled, violations

pytestmark = [pytest.mark.e2e, pytest.mark.slow]  # tests/app/test_palette.py has its answers


def test_the_keys_work_on_the_story_whose_header_is_hidden(open_tab):
    tab = open_tab("story?criterion=ean", width=1440)
    settled(tab).locator("h1").wait_for()
    share = tab.get_by_role("button", name="Share: copy", include_hidden=True)
    expect(share).to_be_attached()  # from here on keys are heard
    expect(share).to_be_hidden()
    expect(tab.get_by_role("button", name="Report")).to_be_hidden()
    keys, palette = (tab.get_by_role("dialog", name=name) for name in ("Keys", "Go to"))
    address = tab.url
    for key, dialog in {"?": keys, "Control+k": palette}.items():
        tab.keyboard.press(key)
        expect(dialog).to_be_visible()
        for inside in ("ArrowRight", "Escape"):  # which turn and leave the story elsewhere
            tab.keyboard.press(inside)
        expect(dialog).to_be_hidden()
        assert settled(tab).url == address
    tab.keyboard.press("Control+k")
    palette.get_by_role("combobox").fill("explore")
    palette.get_by_role("combobox").press("Enter")
    expect(tab).to_have_url(re.compile(r"/explore\?"))


def test_keys_open_the_list_and_the_palette_and_share_copies_the_link(open_tab):
    tab = open_tab("plan?expert=3.7", width=1440)
    tab.context.grant_permissions(["clipboard-read", "clipboard-write"])
    share = tab.get_by_role("button", name="Share: copy")
    share.wait_for()
    # Typed into a field, a question mark is text.
    box = tab.get_by_role("textbox", name="Expert", exact=True)
    tab.get_by_test_id("stExpandSidebarButton").click()
    box.fill("")
    box.press("?")
    expect(box).to_have_value("?")
    box.fill("3.7")
    tab.get_by_test_id("stSidebarCollapseButton").get_by_role("button").click(force=True)
    keys, palette = (tab.get_by_role("dialog", name=name) for name in ("Keys", "Go to"))
    tab.locator("h1").click()
    tab.keyboard.press("?")
    expect(keys).to_be_visible()
    expect(keys).to_contain_text("undo, redo")
    for _ in range(5):  # the focus stays in the dialog
        tab.keyboard.press("Tab")
    assert violations(tab) == {}
    tab.keyboard.press("Escape")
    expect(keys).to_be_hidden()
    # A page, an expert, a criterion, a plan.
    for words, address in {
        "explore": r"/explore\?",
        "2.5": r"/expert\?.*expert=2\.5",
        "criterion msan": r"b=1|criterion=msan",
        "plan random 25%": r"criterion=random",
    }.items():
        settled(tab).keyboard.press("Control+k")
        expect(palette).to_be_visible()
        palette.get_by_role("combobox").fill(words)
        palette.get_by_role("option").first.wait_for()
        palette.get_by_role("combobox").press("Enter")
        expect(palette).to_be_hidden()
        expect(settled(tab)).to_have_url(re.compile(address))
    share.click()
    expect(tab.get_by_text("Link copied")).to_be_visible()
    assert tab.evaluate("navigator.clipboard.readText()") == tab.url
