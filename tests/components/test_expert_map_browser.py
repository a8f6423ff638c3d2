"""The expert map in a real browser, on 6 layers (1..6) x 32 experts, 16 kept."""

import re
from collections.abc import Iterator

import numpy as np
import pytest
from playwright.sync_api import Locator, Page, expect

from app.charts.theme import color_at

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def panels(synthetic):
    return synthetic.magnitude_and_aimer(6, 32, 16)


def cell(page: Page, panel: int, row: int, column: int) -> tuple[float, float]:
    """The middle of a cell: the painted box is found by its colour, not by the script's margins."""
    canvas = page.locator("canvas.base").nth(panel)
    box = canvas.bounding_box()
    left, right, top, bottom = canvas.evaluate(
        """canvas => {
            const {data, width, height} = canvas.getContext("2d").getImageData(
                0, 0, canvas.width, canvas.height);
            const dense = (count, length) => count > 0.8 * length;
            const columns = new Array(width).fill(0), rows = new Array(height).fill(0);
            for (let y = 0; y < height; y++) for (let x = 0; x < width; x++)
                if (data[4 * (y * width + x) + 3] === 255) { columns[x]++; rows[y]++; }
            const most = Math.max(...columns), wide = Math.max(...rows);
            const xs = [...columns.keys()].filter(x => dense(columns[x], most));
            const ys = [...rows.keys()].filter(y => dense(rows[y], wide));
            const scale = width / canvas.clientWidth;
            return [xs[0], xs.at(-1) + 1, ys[0], ys.at(-1) + 1].map(v => v / scale);
        }"""
    )
    x = box["x"] + left + (column + 0.5) * (right - left) / 32
    y = box["y"] + top + (row + 0.5) * (bottom - top) / 6
    return x, y


def readout(page: Page) -> Locator:
    return page.locator(".expert-map").get_by_role("status")


def arrange_by_expert(page: Page) -> None:
    """Until the map is in that order, which has no cut; its pictures may change before."""
    cut = page.locator(".expert-map .legend").get_by_text("cut", exact=True)
    expect(cut).to_be_visible()
    page.get_by_role("radio", name="expert").click()
    expect(cut).to_have_count(0)


def ringed(page: Page) -> list[bool]:
    """Whether anything is outlined, per panel."""
    return page.locator("canvas.overlay").evaluate_all(
        """all => all.map(canvas => canvas.getContext("2d")
            .getImageData(0, 0, canvas.width, canvas.height).data.some(Boolean))"""
    )


def python_says(page: Page, selection: tuple[int, int] | None, calls: int) -> None:
    expect(page.get_by_text(f"python says {selection}, calls {calls}")).to_be_visible()


def test_a_cell_is_read_in_both_panels_and_the_map_is_announced(map_page, panels):
    stage = map_page.get_by_role(
        "application", name=re.compile("Magnitude beside AIMER.*Arrow keys")
    )
    expect(stage).to_have_attribute("tabindex", "0")
    expect(readout(map_page)).to_have_attribute("aria-live", "polite")
    magnitude, aimer = panels
    expert = magnitude.order[2, 4]
    other_rank = list(aimer.order[2]).index(expert) + 1
    map_page.mouse.move(*cell(map_page, 0, 2, 4))
    expect(readout(map_page)).to_contain_text(
        f"layer 3 \u00b7 expert {expert} \u00b7 Magnitude: rank 5/32"
    )
    expect(readout(map_page)).to_contain_text(f"AIMER: rank {other_rank}/32")
    assert ringed(map_page) == [True, True]
    shown = [
        float(score) for score in re.findall(r"score ([\d.]+)", readout(map_page).inner_text())
    ]
    assert shown == pytest.approx([magnitude.scores[2, expert], aimer.scores[2, expert]], rel=5e-3)
    # At the cut.
    map_page.mouse.move(*cell(map_page, 1, 0, 15))
    expect(readout(map_page)).to_contain_text(re.compile(r"AIMER: rank 16/32, score \S+, kept"))
    map_page.mouse.move(*cell(map_page, 1, 0, 16))
    expect(readout(map_page)).to_contain_text(re.compile(r"AIMER: rank 17/32, score \S+, pruned"))


@pytest.mark.slow
def test_pruned_cells_have_the_colour_of_their_value_and_are_small(map_page, panels):
    """In the middle of a cell its colour; at its corner that of kept cells only."""
    magnitude = panels[0]
    for rank in (0, 15, 16, 21, 31):
        x, y = cell(map_page, 0, 2, rank)
        corner = cell(map_page, 0, 2, rank - 0.4)[0]
        inside, edge = (
            map_page.locator("canvas.base").first.evaluate(
                """(canvas, [x, y]) => {
                    const box = canvas.getBoundingClientRect(), scale = canvas.width / box.width;
                    const left = (x - box.x) * scale, top = (y - box.y) * scale;
                    return [...canvas.getContext("2d").getImageData(left, top, 1, 1).data];
                }""",
                [place, y],
            )[:3]
            for place in (x, corner)
        )
        color = color_at(float(magnitude.values[2, magnitude.order[2, rank]]), dark=False)
        own = [int(color[start : start + 2], 16) for start in (1, 3, 5)]
        assert np.abs(np.subtract(inside, own)).max() <= 2
        assert (np.abs(np.subtract(edge, own)).max() <= 2) == (rank < 16)


def test_click_selects_in_python_and_a_second_click_clears(map_page, panels):
    expert = int(panels[1].order[3, 20])
    map_page.mouse.click(*cell(map_page, 1, 3, 20))
    python_says(map_page, (4, expert), 1)
    map_page.mouse.move(0, 0)
    expect(readout(map_page)).to_contain_text(f"layer 4 \u00b7 expert {expert}")
    expect(readout(map_page)).to_contain_text("selected")
    map_page.mouse.click(*cell(map_page, 1, 3, 20))
    python_says(map_page, None, 2)


@pytest.mark.slow
def test_arrow_keys_move_and_enter_selects(map_page, panels):
    order = panels[0].order
    map_page.get_by_role("application").focus()
    for key in ("ArrowRight", "ArrowRight", "ArrowDown"):
        map_page.keyboard.press(key)
    expect(readout(map_page)).to_contain_text(f"layer 2 \u00b7 expert {order[1, 1]} ")
    map_page.keyboard.press("End")
    expect(readout(map_page)).to_contain_text("Magnitude: rank 32/32")
    map_page.keyboard.press("ArrowRight")
    expect(readout(map_page)).to_contain_text("Magnitude: rank 32/32")
    map_page.keyboard.press("Home")
    map_page.keyboard.press("Enter")
    python_says(map_page, (2, int(order[1, 0])), 1)
    map_page.keyboard.press("Escape")
    python_says(map_page, None, 2)


@pytest.mark.slow
def test_switching_the_arrangement_repaints_and_keeps_the_selection(map_page, panels):
    map_page.mouse.click(*cell(map_page, 0, 5, 0))
    chosen = (6, int(panels[0].order[5, 0]))
    python_says(map_page, chosen, 1)
    canvas = map_page.locator("canvas.base").first
    before = canvas.evaluate("canvas => canvas.toDataURL()")
    arrange_by_expert(map_page)
    map_page.wait_for_function(
        "([canvas, before]) => canvas.toDataURL() !== before", arg=[canvas.element_handle(), before]
    )
    map_page.mouse.move(*cell(map_page, 1, 1, 7))
    expect(readout(map_page)).to_contain_text("layer 2 \u00b7 expert 7 ")
    map_page.mouse.move(0, 0)
    python_says(map_page, chosen, 1)


# Frames are 20 ms apart to the page, however long they take, until `window.clock.restore`.
# `window.clock.stands` waits until a canvas has shown one picture for 10 frames.
CLOCK = """() => {
    const [next, now] = [window.requestAnimationFrame, performance.now];
    let [time, frame] = [now.call(performance), 0];
    const pass = at => {
        if (at !== frame) [time, frame] = [time + 20, at];
        return time;
    };
    window.requestAnimationFrame = call => next(at => call(pass(at)));
    performance.now = () => time;
    window.clock = {
        restore: () => {
            window.requestAnimationFrame = next;
            delete performance.now;
        },
        stands: async canvas => {
            let picture = canvas.toDataURL();
            for (let frames = 0; frames < 10; frames += 1) {
                await new Promise(next);
                if (canvas.toDataURL() !== picture) [picture, frames] = [canvas.toDataURL(), 0];
            }
            return picture;
        },
    };
}"""


@pytest.fixture
def even_clock(map_page: Page) -> Iterator[None]:
    map_page.evaluate(CLOCK)
    yield
    map_page.evaluate("window.clock.restore()")


@pytest.mark.slow
@pytest.mark.usefixtures("even_clock")
@pytest.mark.parametrize("motion", ["no-preference", "reduce"])
def test_cells_move_to_another_order_unless_motion_is_reduced(map_page, motion):
    """What the canvas shows after the toggle, frame by frame; keys read the new order at once."""
    map_page.emulate_media(reduced_motion=motion)
    canvas = map_page.locator("canvas.base").first
    # A new map may be painted again, and a canvas that is read is painted by other means.
    canvas.evaluate(
        """async canvas => {
            window.shown = [await window.clock.stands(canvas)];
            const look = () => {
                const now = canvas.toDataURL();
                if (now !== window.shown.at(-1)) window.shown.push(now);
                window.looking = requestAnimationFrame(look);
            };
            look();
        }"""
    )
    arrange_by_expert(map_page)
    map_page.get_by_role("application").focus()
    map_page.keyboard.press("ArrowRight")
    expect(readout(map_page)).to_contain_text("layer 1 \u00b7 expert 0 ")
    end = canvas.evaluate("canvas => window.clock.stands(canvas)")
    shown = map_page.evaluate("cancelAnimationFrame(window.looking), window.shown")
    assert (len(shown) > 2) == (motion == "no-preference")
    # It ends in what a page that opens in this order shows.
    map_page.set_viewport_size({"width": 1201, "height": 900})
    map_page.set_viewport_size({"width": 1200, "height": 900})
    assert canvas.evaluate("canvas => window.clock.stands(canvas)") == shown[-1] == end


@pytest.mark.slow
def test_narrow_window_stacks_the_panels(map_page):
    map_page.set_viewport_size({"width": 560, "height": 1000})
    expect(map_page.locator(".stage.stacked")).to_be_visible()
    first, second = (box.bounding_box() for box in map_page.locator(".panel").all())
    assert second["y"] >= first["y"] + first["height"]
    map_page.mouse.move(*cell(map_page, 0, 1, 31))
    expect(readout(map_page)).to_contain_text("Magnitude: rank 32/32")


ORANGE = """canvas => {
    const {data} = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
    const mark = getComputedStyle(canvas.getRootNode().querySelector(".changed"));
    const [r, g, b] = mark.borderBottomColor.match(/\\d+/g).map(Number);
    let count = 0;
    for (let at = 0; at < data.length; at += 4)
        count += data[at] === r && data[at + 1] === g && data[at + 2] === b;
    return count;
}"""


# Rows of 7 and of 5 pixels (474 pixels shared, rounded down) have a foot of 2.
@pytest.mark.parametrize(
    ("map_page", "layers", "experts"),
    [
        (f"?layers={layers}&experts={experts}&mode=values", layers, experts)
        for layers, experts in ((61, 384), (94, 128))
    ],
    indirect=["map_page"],
)
def test_marks_of_small_cells_leave_their_colour_to_be_seen(map_page, synthetic, layers, experts):
    canvas = map_page.locator("canvas.base")
    expect(canvas).to_have_count(1)
    expect(map_page.locator(".narrow")).to_have_count(1)
    kept = [
        {(row, expert) for row, order in enumerate(panel.order) for expert in order[: experts // 2]}
        for panel in synthetic.magnitude_and_aimer(layers, experts, experts // 2)
    ]
    share = len(kept[0] ^ kept[1]) / (layers * experts)
    assert share > 0.2
    width = canvas.evaluate("canvas => canvas.width") - 16 - 14 - 2 * 7  # without the margins
    # As wide as the cells, which do not all have as many pixels, those with a mark not evenly so;
    # the margins in `width` are as the page has them, to a pixel.
    assert canvas.evaluate(ORANGE) == pytest.approx(share * width * layers * 2, rel=0.05)


@pytest.mark.parametrize("map_page", ["?layers=3&experts=384&mode=values"], indirect=True)
def test_more_experts_than_pixels_are_all_there(map_page):
    map_page.set_viewport_size({"width": 360, "height": 900})
    expect(readout(map_page)).to_contain_text("share pixels")
    canvas = map_page.locator("canvas.base")
    box = canvas.bounding_box()
    assert box["x"] + box["width"] <= 360
    # 14 pixels of margin are right of the last cell.
    map_page.mouse.move(box["x"] + box["width"] - 14 - 0.6, box["y"] + 30)
    expect(readout(map_page)).to_contain_text("rank 384/384")
    # The keys read what the pointer cannot tell apart.
    map_page.get_by_role("application").press("ArrowLeft")
    expect(readout(map_page)).to_contain_text("rank 383/384")


def drag(page: Page, start: tuple[float, float], end: tuple[float, float]) -> None:
    page.mouse.move(*start)
    page.mouse.down()
    page.mouse.move(*end, steps=4)
    page.mouse.up()


def test_a_part_that_was_dragged_over_fills_the_map_until_escape(map_page, panels):
    """Over ranks alone, over both; a drag selects nothing, and the keys move the part along."""
    legend, order = map_page.locator(".legend"), panels[0].order
    drag(map_page, cell(map_page, 0, 2, 8), cell(map_page, 0, 2, 19))
    expect(legend).to_contain_text("layers 1\u20136, ranks 9\u201320")
    python_says(map_page, None, 0)
    # 12 columns fill the width: the last is where the 32nd of the whole map was.
    map_page.mouse.move(*cell(map_page, 0, 2, 31))
    expect(readout(map_page)).to_contain_text(f"layer 3 \u00b7 expert {order[2, 19]} ")
    expect(readout(map_page)).to_contain_text("Magnitude: rank 20/32")
    map_page.get_by_role("application").press("ArrowRight")
    expect(readout(map_page)).to_contain_text("Magnitude: rank 21/32")
    expect(legend).to_contain_text("ranks 10\u201321")
    drag(map_page, cell(map_page, 0, 2, 0), cell(map_page, 0, 3, 31))
    expect(legend).to_contain_text("layers 3\u20134, ranks 10\u201321")
    map_page.get_by_role("application").press("Escape")
    expect(legend).not_to_contain_text("layers")
    map_page.get_by_role("application").press("+")
    expect(legend).to_contain_text(re.compile(r"layers \d+\u2013\d+, ranks \d+\u2013\d+"))
    map_page.get_by_role("button", name="Whole map").click()
    expect(legend).not_to_contain_text("layers")
    expect(map_page.get_by_role("application")).to_be_focused()
    python_says(map_page, None, 0)


def test_a_drag_that_ends_elsewhere_or_by_escape_neither_zooms_nor_selects(map_page, panels):
    legend, order = map_page.locator(".legend"), panels[0].order
    box = map_page.locator("canvas.base").first.bounding_box()
    # Let go right above the map, before the drag is one.
    map_page.mouse.move(box["x"] + 200, box["y"] + 2)
    map_page.mouse.down()
    map_page.mouse.move(box["x"] + 200, box["y"] - 3)
    map_page.mouse.up()
    map_page.mouse.move(*cell(map_page, 0, 2, 5), steps=4)
    expect(readout(map_page)).to_contain_text(f"layer 3 \u00b7 expert {order[2, 5]} ")
    map_page.mouse.down()
    map_page.mouse.move(*cell(map_page, 0, 4, 15), steps=4)
    map_page.get_by_role("application").press("Escape")
    map_page.mouse.up()
    expect(legend).not_to_contain_text("layers")
    python_says(map_page, None, 0)
    # Keys begin in sight.
    drag(map_page, cell(map_page, 0, 2, 8), cell(map_page, 0, 3, 19))
    expect(legend).to_contain_text("layers 3\u20134, ranks 9\u201320")
    map_page.mouse.move(0, 0)
    map_page.get_by_role("application").press("ArrowRight")
    expect(readout(map_page)).to_contain_text(f"layer 3 \u00b7 expert {order[2, 8]} ")


@pytest.mark.parametrize("map_page", ["?layers=4&experts=512&mode=beside"], indirect=True)
def test_cells_under_four_pixels_are_shared_by_ranks_and_say_so(map_page, synthetic):
    """A cell of n ranks has the mean of their levels."""
    legend = map_page.locator(".legend")
    expect(legend).to_contain_text(re.compile(r"each cell: \d+ ranks, their mean"))
    together = int(re.search(r"each cell: (\d+) ranks", legend.inner_text())[1])
    assert together > 2
    panel = synthetic.magnitude_and_aimer(4, 512, 256)[0]
    canvas = map_page.locator("canvas.base").first
    # 16 + 7 and 14 pixels of margin left and right, 20 above; the first cell of the second layer.
    shown = canvas.evaluate(
        """(canvas) => [...canvas.getContext("2d").getImageData(25, 20 + 79 + 40, 1, 1).data]"""
    )[:3]
    levels = np.rint(255 * panel.values[1, panel.order[1, :together]])
    color = color_at(float(levels.mean()) / 255, dark=False)
    own = [int(color[start : start + 2], 16) for start in (1, 3, 5)]
    assert np.abs(np.subtract(shown, own)).max() <= 2
    drag_from = canvas.bounding_box()
    left, top = drag_from["x"] + 60, drag_from["y"] + 100
    drag(map_page, (left, top), (left + 40, top))
    expect(legend).to_contain_text("layers 1\u20134")
    expect(legend).not_to_contain_text("each cell")  # each has its own again
