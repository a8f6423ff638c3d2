"""Compare in a real browser: its address, the swap, the way there and back, the files."""

import json
import re

import pytest
from playwright.sync_api import Locator, Page, expect
from tabs import metric, pick

pytestmark = pytest.mark.e2e


def command(tab: Page) -> Locator:
    return tab.get_by_test_id("stCode").filter(has_text="moeprune compare").first


def test_choices_are_in_the_address_and_open_the_same_view(open_tab):
    tab = open_tab("compare")
    pick(tab, "Criterion B", "AIMER")
    pick(tab, "Calibration A", "demo-math")
    expect(tab).to_have_url(re.compile("a_text=demo-math"))
    expect(command(tab)).to_contain_text(
        "compare demo --criterion reap --corpus demo-math --sparsity 50% --with-criterion aimer"
    )
    agreed = metric(tab, "Equal decisions").inner_text()
    other = open_tab(tab.url.split("/", 3)[3])
    expect(metric(other, "Equal decisions")).to_have_text(agreed)
    other.get_by_role("button", name="Swap A and B").click()
    expect(command(other)).to_contain_text("--criterion aimer --sparsity 50% --with-criterion reap")
    expect(metric(other, "Equal decisions")).to_have_text(agreed)


def test_choices_survive_another_page(open_tab):
    tab = open_tab("compare")
    pick(tab, "Criterion A", "Frequency  (0, 0, 0)")
    expect(command(tab)).to_contain_text("--criterion frequency")
    tab.get_by_role("link", name="Explore", exact=True).first.click()
    tab.get_by_role("heading", level=1, name="Which experts does each criterion keep?").wait_for()
    tab.get_by_role("link", name="Compare", exact=True).first.click()
    expect(command(tab)).to_contain_text("--criterion frequency")


def test_the_files_of_a_chart(open_tab):
    tab = open_tab("compare")
    part = tab.locator(".st-key-data-agreement")
    part.get_by_text("Data and downloads").click()
    with tab.expect_download() as got:
        part.get_by_role("button", name="CSV", exact=True).click()
    lines = got.value.path().read_text().splitlines()
    assert lines[0] == "layer,agreement,jaccard,kendall_tau"
    assert len(lines) == 7
    with tab.expect_download() as got:
        part.get_by_role("button", name="HTML", exact=True).click()
    page = got.value.path().read_text()
    assert "<script src" not in page
    # What made it stands below the figure.
    assert json.dumps("moe-prune-studio")[1:-1] in page
