"""One expert followed through the pages in a real browser; a region brushed; a map clicked."""

import re

import pytest
from playwright.sync_api import Page, expect
from tabs import choose, go, preset, settled

pytestmark = pytest.mark.e2e


def mark_with_keyboard(tab: Page) -> str:
    """Select the expert right of the first; what the map reads of it."""
    stage = tab.get_by_role("application", name=re.compile("Expert map"))
    stage.focus()
    stage.press("ArrowRight")
    stage.press("ArrowRight")
    readout = tab.locator(".expert-map").get_by_role("status")
    expect(readout).to_contain_text(re.compile(r"layer \d+ . expert \d+"))
    stage.press("Enter")
    expect(readout).to_contain_text("selected")
    return readout.inner_text()


def test_an_expert_stays_marked_across_criteria_and_pages(open_tab):
    tab = settled(open_tab("explore"))
    layer, expert = re.search(r"layer (\d+) . expert (\d+)", mark_with_keyboard(tab)).groups()
    expect(tab).to_have_url(re.compile(rf"expert={layer}\.{expert}"))
    readout = tab.locator(".expert-map").get_by_role("status")
    preset(tab, "MSAN")
    expect(readout).to_contain_text(re.compile(rf"layer {layer} . expert {expert} .*MSAN: rank"))
    expect(readout).to_contain_text("selected")
    go(tab, "Compare", "Where do two recipes disagree?")
    expect(tab.get_by_role("textbox", name="Expert")).to_have_value(f"{layer}.{expert}")
    expect(tab).to_have_url(re.compile(rf"expert={layer}\.{expert}"))
    go(tab, "Explore", "Which experts does each criterion keep?")
    expect(readout).to_contain_text(f"expert {expert}")
    expect(readout).to_contain_text("selected")


def test_the_link_marks_it_and_the_drawer_has_its_numbers(open_tab):
    tab = open_tab("explore?expert=3.7")
    readout = tab.locator(".expert-map").get_by_role("status")
    expect(readout).to_contain_text(re.compile("layer 3 . expert 7 .*selected"))
    settled(tab).get_by_role("button", name="All numbers of 3.7").click()
    drawer = tab.get_by_role("dialog")
    expect(drawer).to_contain_text("Layer 3, expert 7")
    expect(drawer).to_contain_text("Rank under every criterion, of 32")
    expect(drawer.get_by_test_id("stDataFrame")).to_have_count(2)
    drawer.get_by_role("button", name="Close").click()
    expect(drawer).to_have_count(0)


def test_escape_on_the_map_clears_the_address(open_tab):
    tab = settled(open_tab("explore?expert=3.7"))
    readout = tab.locator(".expert-map").get_by_role("status")
    expect(readout).to_contain_text("selected")
    tab.get_by_role("application", name=re.compile("Expert map")).press("Escape")
    expect(tab.get_by_role("textbox", name="Expert")).to_have_value("")
    expect(tab).not_to_have_url(re.compile("expert="))
    expect(readout).not_to_contain_text("selected")


def point_of(tab: Page, chart, x: float, y: float, axes: str = "") -> tuple[float, float]:
    """Where a place on a chart's axes is in the window."""
    chart.scroll_into_view_if_needed()
    return chart.evaluate(
        """(chart, [x, y, axes]) => {
            const layout = chart._fullLayout, box = chart.getBoundingClientRect();
            const xaxis = layout["xaxis" + axes], yaxis = layout["yaxis" + axes];
            return [box.x + xaxis._offset + xaxis.d2p(x), box.y + yaxis._offset + yaxis.d2p(y)];
        }""",
        [x, y, axes],
    )


def test_a_brushed_region_lists_its_experts(open_tab):
    tab = open_tab("compare")
    chart = tab.locator(".st-key-chart-rank-rank .js-plotly-plot")
    chart.wait_for()
    settled(tab)
    start, end = (point_of(tab, chart, share, share) for share in (0.01, 0.49))
    tab.mouse.move(*start)
    tab.mouse.down()
    tab.mouse.move(*end, steps=8)
    tab.mouse.up()
    expect(tab.get_by_text("Experts in the region")).to_be_visible()
    # 4 x 4 of the 8 x 8 cells: all that both keep at 50%.
    both = chart.get_by_text(re.compile(r"^both: \d+")).text_content() or ""
    count = int(both.split()[-1])
    with tab.expect_download() as got:
        tab.locator(".st-key-csv-region").get_by_role("button", name="CSV").click()
    lines = got.value.path().read_text().splitlines()
    assert len(lines) - 1 == count
    assert all(",both," in line for line in lines[1:])


def test_a_click_on_the_maps_takes_exponents_and_sparsity(open_tab):
    tab = open_tab("explore")
    choose(tab, "tab", "Exponents")
    chart = tab.locator(".st-key-chart-overlap-maps .js-plotly-plot")
    chart.wait_for()
    settled(tab)
    # The second cell of the first row of the first map: b=0, alpha=0, beta=1 at 25%.
    tab.mouse.click(*point_of(tab, chart, 1, 0))
    expect(tab.get_by_test_id("stMetricValue").first).to_have_text("EAN")
    expect(tab.locator(".st-key-sparsity")).to_contain_text("25%")
    expect(tab).to_have_url(re.compile("sparsity=25"))
