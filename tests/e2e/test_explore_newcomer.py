"""A newcomer's two questions, answered on the screen within five clicks of the first page."""

import re

import pytest
from playwright.sync_api import Locator, Page, expect
from tabs import metric, settled

pytestmark = pytest.mark.e2e


class Clicks:
    """A person who counts clicks."""

    def __init__(self, tab: Page) -> None:
        self.tab, self.count = tab, 0

    def on(self, target: Locator) -> None:
        settled(self.tab)
        target.click()
        self.count += 1
        settled(self.tab)


def shown(place: Locator) -> str:
    """The text of an element that is there to be read, without hovering."""
    expect(place).to_be_visible()
    return place.inner_text()


def test_two_questions_in_five_clicks(open_tab, dashboard):
    tab = open_tab()
    person = Clicks(tab)
    person.on(tab.get_by_role("link", name="Explore the experts"))
    tab.get_by_role("heading", level=1, name="Which experts does each criterion keep?").wait_for()

    # Which criterion depends least on the calibration text?
    answer = shown(tab.get_by_text("depends least on the calibration text"))
    found = re.search(
        r"Of 17 variants, (\w+) (\([\d, ]+\)) depends least .*?overlap (0\.\d+)", answer
    )
    assert found, answer
    name, exponents, overlap = found.groups()

    # How much memory does 50% save?
    expect(tab.locator(".st-key-sparsity")).to_contain_text("50%")
    size = tab.get_by_test_id("stMetric").filter(has_text="Size after pruning")
    after = shown(size.get_by_test_id("stMetricValue"))
    saved = shown(size.get_by_test_id("stMetricDelta"))
    before = re.search(r"([\d.]+)\s+MiB", shown(tab.get_by_text("6 layers x 32 experts"))).group(1)
    number = r"-?([\d.]+) MiB"
    kept, gone = (float(re.search(number, text).group(1)) for text in (after, saved))
    assert kept + gone == pytest.approx(float(before), abs=0.15)

    # Both answers are borne out by what the next clicks show.
    person.on(tab.locator(".st-key-tab").get_by_role("radio", name="Which criterion?"))
    reading = shown(tab.get_by_text(re.compile("On this model .* depends on the corpus least")))
    assert f"On this model {name} depends on the corpus least" in reading
    assert overlap in reading
    person.on(tab.get_by_role("button", name=re.compile(rf"^{name}, ")))
    expect(metric(tab, "Criterion")).to_have_text(name)
    b, alpha, beta = re.findall(r"\d", exponents)
    badge = tab.get_by_test_id("stMetric").filter(has_text="Criterion")
    expect(badge).to_contain_text(f"b={b}")
    expect(badge).to_contain_text(f"={alpha} ")
    assert round(100 * float(overlap)) == int(
        shown(metric(tab, "Overlap across texts")).rstrip("%")
    )
    assert shown(badge).rstrip().endswith(f"={beta}")
    assert person.count <= 5
