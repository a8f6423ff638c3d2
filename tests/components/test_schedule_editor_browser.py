"""The schedule editor alone in Chromium: many layers, zoom, late and stale answers, motion."""

from pathlib import Path

import pytest
from playwright.sync_api import Locator, Page, expect

pytestmark = pytest.mark.e2e
SCRIPTS = Path(__file__).parents[2] / "app" / "components" / "schedule_editor" / "browser"
PAGE = """<!doctype html><html lang="en"><title>editor</title>
<link rel="stylesheet" href="schedule_editor.css">
<style>:root { --st-primary-color: #0f6d7e; --st-text-color: #17242d; --st-background-color: #fff }
body { margin: 20px; width: 900px }</style>
<div id="host"><div class="schedule-editor"></div></div>
<script type="module">
  import scheduleEditor from "./schedule_editor.js";
  window.sent = [];
  const setStateValue = (name, value) => window.sent.push(value);
  window.draw = (data) =>
    scheduleEditor({data, parentElement: document.querySelector("#host"), setStateValue});
</script>"""
TYPES = {".js": "text/javascript", ".css": "text/css", ".html": "text/html"}


def data_of(layers, counts, seen=None, locked=()):
    return {
        "model": "id",
        "layers": list(range(layers)),
        "rules": {
            "sizes": [128] * layers,
            "low": [8] * layers,
            "high": [128] * layers,
            "step": 1,
        },
        "floors": [8] * layers,
        "counts": counts,
        "ghost": [64] * layers,
        "locked": list(locked),
        "budget": sum(counts),
        "seen": seen,
    }


@pytest.fixture
def page(chromium):
    """A page that holds the editor and nothing of Streamlit; fails on an error in the browser."""
    page = chromium.new_page(viewport={"width": 1000, "height": 700})
    errors = []
    page.on("pageerror", lambda error: errors.append(str(error)))

    def serve(route):
        name = route.request.url.rpartition("/")[2]
        body = PAGE if name == "index.html" else (SCRIPTS / name).read_text()
        route.fulfill(body=body, content_type=TYPES[Path(name).suffix])

    page.route("http://editor.test/**", serve)
    page.goto("http://editor.test/index.html")
    page.wait_for_function("Boolean(window.draw)")
    yield page
    page.close()
    assert errors == []


def draw(page: Page, *args, **options) -> None:
    page.evaluate("data => { window.draw(data); }", data_of(*args, **options))


def bars(page: Page) -> Locator:
    return page.get_by_role("slider")


def shown(page: Page) -> list[int]:
    return bars(page).evaluate_all("all => all.map(bar => Number(bar.ariaValueNow))")


def widths(page: Page) -> list[float]:
    return bars(page).evaluate_all("all => all.map(bar => bar.getBoundingClientRect().width)")


def sent(page: Page) -> list[dict]:
    return page.evaluate("window.sent")


@pytest.mark.parametrize("layers", [48, 94])
def test_columns_of_many_layers_can_be_hit_and_the_focused_one_is_in_view(page, layers):
    draw(page, layers, [64] * layers)
    assert min(widths(page)) >= 24
    locks = page.get_by_role("button", name="Lock layer")
    assert (
        min(locks.evaluate_all("all => all.map(e => Math.min(e.offsetWidth, e.offsetHeight))"))
        >= 24
    )
    bars(page).first.focus()
    for _ in range(layers - 1):
        page.keyboard.press("ArrowRight")
    expect(bars(page).last).to_be_focused()
    expect(bars(page).last).to_be_in_viewport(ratio=1)
    expect(bars(page).first).not_to_be_in_viewport()
    # One stop of the Tab key for all of them.
    assert bars(page).evaluate_all("all => all.filter(bar => bar.tabIndex === 0).length") == 1


def test_all_layers_at_once_and_back(page):
    draw(page, 94, [64] * 94)
    wide = widths(page)[0]
    page.get_by_role("button", name="All layers").click()
    assert sum(widths(page)) <= 900
    expect(bars(page).last).to_be_in_viewport(ratio=1)
    expect(page.locator(".overview")).to_be_hidden()
    page.get_by_role("button", name="All layers").click()
    assert widths(page)[0] == pytest.approx(wide)
    page.get_by_role("button", name="Wider columns").click()
    assert widths(page)[0] == pytest.approx(1.4 * wide, rel=0.02)
    # The strip of all layers leads to any of them.
    box = page.locator(".overview").bounding_box()
    page.mouse.click(box["x"] + box["width"] - 2, box["y"] + 5)
    expect(bars(page).last).to_be_in_viewport(ratio=1)


def test_an_answer_to_an_older_edit_does_not_take_back_a_newer_one(page):
    draw(page, 6, [64] * 6)
    bars(page).nth(2).focus()
    page.keyboard.press("ArrowUp")
    page.keyboard.press("ArrowUp")
    older, newer = sent(page)
    assert newer["at"] > older["at"]
    draw(page, 6, older["counts"], seen=older["at"])
    assert shown(page) == newer["counts"]
    draw(page, 6, newer["counts"], seen=newer["at"])
    assert shown(page) == newer["counts"]


def test_what_python_makes_of_an_edit_is_shown_and_can_be_undone(page):
    draw(page, 6, [64] * 6)
    bars(page).nth(2).focus()
    page.keyboard.press("ArrowUp")
    (edit,) = sent(page)
    # Refused: the counts before.
    draw(page, 6, [64] * 6, seen=edit["at"])
    assert shown(page) == [64] * 6
    page.keyboard.press("Control+z")
    assert shown(page) == edit["counts"]


def test_data_that_comes_during_a_drag_waits_for_its_end(page):
    draw(page, 6, [64] * 6)
    box = bars(page).nth(2).bounding_box()
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] * 0.7
    page.mouse.move(x, y)
    page.mouse.down()
    page.mouse.move(x, y - 40, steps=4)
    held = shown(page)
    assert held[2] > 64
    draw(page, 6, [60, 68, 64, 64, 64, 64], seen=None)
    assert shown(page) == held
    page.mouse.up()
    # What was dragged is newer than what came.
    assert sent(page)[-1]["counts"] == held
    assert shown(page) == held


def test_another_model_has_a_history_of_its_own(page):
    draw(page, 6, [64] * 6)
    bars(page).nth(2).focus()
    page.keyboard.press("PageUp")
    edited = shown(page)
    draw(page, 4, [64] * 4)
    assert shown(page) == [64] * 4
    expect(page.get_by_role("button", name="Undo (Ctrl+Z)")).to_be_disabled()
    draw(page, 6, edited)
    page.get_by_role("button", name="Undo (Ctrl+Z)").click()
    assert shown(page) == [64] * 6


def test_keys_that_are_typed_elsewhere_are_left_alone(page):
    draw(page, 6, [64] * 6)
    bars(page).nth(2).focus()
    page.keyboard.press("ArrowUp")
    edited = shown(page)
    page.evaluate("document.body.append(document.createElement('input'))")
    page.locator("input").fill("text")
    page.keyboard.press("Control+z")
    assert shown(page) == edited


@pytest.mark.parametrize("motion", ["reduce", "no-preference"])
def test_bars_do_not_move_for_those_who_ask_for_that(page, motion):
    page.emulate_media(reduced_motion=motion)
    draw(page, 6, [64] * 6)
    draw(page, 6, [60, 68, 64, 64, 64, 64])
    found = page.locator(".column .bar").first.evaluate(
        "bar => getComputedStyle(bar).transitionDuration"
    )
    assert (found == "0s") == (motion == "reduce")
