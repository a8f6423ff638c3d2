"""Plan in a real browser: bars, locks, the address, files, and the export of it all."""

import re
from urllib.parse import urlencode

import pytest
from playwright.sync_api import Locator, Page, expect
from tabs import JOB_MS, go, job, metric, settled, wide_elements

from pruning import load_pruned
from pruning.plan.layer_words import counts_words

pytestmark = pytest.mark.e2e
EVEN = [16] * 6
# Six more for layer 2: the five others give one each, the first of them one more.
DRAGGED = [14, 15, 22, 15, 15, 15]


def bar(tab: Page, layer: int) -> Locator:
    return tab.get_by_role("slider", name=f"Layer {layer}, experts kept")


def shown(tab: Page) -> list[int]:
    bars = tab.locator(".schedule-editor").get_by_role("slider")
    return [int(slider.get_attribute("aria-valuenow") or -1) for slider in bars.all()]


def expect_counts(tab: Page, counts: list[int]) -> None:
    """In the bars, in the address, and in the field; the page rests."""
    text = ".".join(map(str, counts))
    words = urlencode({"set": counts_words(dict(enumerate(counts)))}, doseq=True)
    expect(tab).to_have_url(re.compile(f"{re.escape(words)}(&|$)"))
    expect(tab.locator(".st-key-counts input")).to_have_value(text)  # folded
    settled(tab)
    assert shown(tab) == counts


def badge(tab: Page) -> Locator:
    return tab.locator(".schedule-editor .badge")


def opened(open_tab, address: str = "plan", **options) -> Page:
    tab = open_tab(address, **options)
    bar(tab, 0).wait_for()
    # The charts below come last; with them the page has its final height.
    tab.locator(".js-plotly-plot").nth(1).wait_for()
    return settled(tab)


def grab(tab: Page, layer: int) -> tuple[float, float]:
    bar(tab, layer).scroll_into_view_if_needed()
    box = bar(tab, layer).bounding_box()
    assert box is not None
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] * 0.7
    tab.mouse.move(x, y)
    tab.mouse.down()
    return x, y


def pixels(tab: Page, experts: int) -> float:
    """Height of so many experts, of the 32 of a layer of the demo."""
    box = bar(tab, 0).bounding_box()
    assert box is not None
    return box["height"] * experts / 32


def test_a_drag_keeps_the_budget_and_tells_python_on_release(open_tab):
    tab = opened(open_tab)
    expect(badge(tab)).to_contain_text("96 of 192 experts kept")
    x, y = grab(tab, 2)
    tab.mouse.move(x, y - pixels(tab, 6), steps=4)
    assert shown(tab) == DRAGGED
    expect(badge(tab)).to_contain_text("96 of 192 experts kept")
    readout = tab.locator(".schedule-editor").get_by_role("status")
    expect(readout).to_contain_text("layer 2 keeps 22 of 32 (69%) · uniform 16, +6")
    # Nothing has left the browser yet.
    expect(tab).to_have_url(re.compile(r"/plan\?opened=1$"))
    tab.mouse.up()
    expect_counts(tab, DRAGGED)
    expect(tab.get_by_test_id("stCode").filter(has_text="moeprune plan")).to_contain_text(
        "--set 2=22 --set 1,3-5=15 --set 0=14"
    )
    expect(tab.get_by_text("Layers of different sizes")).to_be_visible()


@pytest.mark.slow  # tests/components has the same on the editor alone, test_every_page.py the width
def test_locked_layers_neither_give_nor_take_and_nothing_is_too_wide(open_tab):
    tab = opened(open_tab, width=1024)
    assert wide_elements(tab) == []
    # All columns of the exact values are in sight.
    exact = tab.get_by_test_id("stDataFrame").last.locator(".dvn-scroller")
    assert exact.evaluate("table => table.scrollWidth <= table.clientWidth")
    # Every target is 24 px at least, also the locks.
    sizes = (
        tab.locator(".schedule-editor")
        .locator("button:visible, [role=slider]")
        .evaluate_all("all => all.map(e => [e.offsetWidth, e.offsetHeight])")
    )
    assert min(min(size) for size in sizes) >= 24
    tab.get_by_role("button", name="Lock layer 0", exact=True).click()
    expect(tab).to_have_url(re.compile("locked=0"))
    bar(tab, 1).focus()
    tab.keyboard.press("l")
    expect(tab).to_have_url(re.compile("locked=0-1"))
    settled(tab)
    tab.keyboard.press("ArrowUp")
    assert shown(tab) == EVEN
    bar(tab, 2).focus()
    tab.keyboard.press("PageUp")
    expect_counts(tab, [16, 16, 19, 15, 15, 15])
    expect(bar(tab, 0)).to_have_attribute("aria-disabled", "true")
    tab.reload()
    bar(tab, 0).wait_for()
    expect(bar(tab, 0)).to_have_attribute("aria-disabled", "true")
    expect_counts(tab, [16, 16, 19, 15, 15, 15])


@pytest.mark.slow
def test_the_export_of_a_plan_by_hand_loads(open_tab, dashboard):
    tab = opened(open_tab, "plan?set=0=6&set=1-2,4=5&set=3=7&set=5=20&sparsity=75%25")
    assert shown(tab) == [6, 5, 5, 7, 5, 20]
    tab.get_by_role("link", name="Export this plan").click()
    tab.get_by_role("heading", level=1, name="Is this the checkpoint to ship?").wait_for()
    settled(tab)
    expect(metric(tab, "Per layer")).to_have_text("5 to 20")
    expect(tab.get_by_text("check your serving engine")).to_be_visible()
    tab.get_by_role("textbox", name="Folder name").fill("by-hand")
    tab.get_by_role("textbox", name="Folder name").press("Enter")
    expect(tab.get_by_text("exports/by-hand is new")).to_be_visible()
    settled(tab).get_by_role("button", name="Run export").click()
    expect(job(tab, "by-hand")).to_contain_text(
        re.compile(r"PASS: \S+, all \d+ checks"), timeout=JOB_MS
    )
    expect(tab.get_by_text("by-hand is written")).to_be_visible()
    model = load_pruned(dashboard.exports / "by-hand")
    assert [layer.mlp.experts.num_experts for layer in model.model.layers] == [6, 5, 5, 7, 5, 20]
    # The way back has the same plan.
    go(tab, "Plan", "Where should the budget go?")
    bar(tab, 0).wait_for()
    assert shown(settled(tab)) == [6, 5, 5, 7, 5, 20]
