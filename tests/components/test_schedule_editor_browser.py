"""The schedule editor alone in Chromium, and its rule of who gives and takes against Python's."""

import json
import random
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from allocations import choices_of
from playwright.sync_api import Locator, Page, expect

from analysis.errors import PlanError
from analysis.families.base import MoELayer
from pruning.measures.curves import Curve, Curves, Sensitivity
from pruning.measures.sum_error import SumError
from pruning.plan.constraints import Constraints
from pruning.plan.units import expert_units
from pruning.planning.predicted import predict
from pruning.schedules import from_counts

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


def data_of(layers, counts, seen=None, locked=(), terms=None):
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
        "terms": terms,
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


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
def test_the_keyboard_does_all_of_it_and_undoes_it(page):
    """On the layers of the demo; tests/e2e/test_plan.py has what the page makes of an edit."""
    rules = {"sizes": [32] * 6, "low": [4] * 6, "high": [32] * 6, "step": 1}
    even = data_of(6, [16] * 6) | {"rules": rules, "floors": [4] * 6, "ghost": [16] * 6}
    page.evaluate("data => { window.draw(data); }", even)
    undo = page.get_by_role("button", name="Undo (Ctrl+Z)")
    redo = page.get_by_role("button", name="Redo (Ctrl+Shift+Z)")
    expect(undo).to_be_disabled()
    bars(page).first.focus()
    page.keyboard.press("ArrowRight")
    bar = bars(page).nth(1)
    expect(bar).to_be_focused()
    expect(bar).to_have_attribute("aria-valuemin", "4")
    expect(bar).to_have_attribute("aria-valuemax", "32")
    first, second = [17, 13, 17, 17, 16, 16], [12, 32, 13, 13, 13, 13]
    third = [19, 4, 19, 18, 18, 18]
    for key, counts in (
        ("ArrowUp", [15, 17, 16, 16, 16, 16]),
        ("ArrowUp", [15, 18, 15, 16, 16, 16]),
        ("ArrowDown", [15, 17, 16, 16, 16, 16]),
        ("ArrowDown", [16] * 6),  # the way back leads exactly back
        ("PageDown", first),  # a tenth of a layer, rounded
        ("End", second),  # all 32: sixteen more, three from each and one from the first
        ("Home", third),
        ("Control+z", second),
        ("Control+z", first),
        ("Control+Shift+Z", second),
    ):
        page.keyboard.press(key)
        assert shown(page) == sent(page)[-1]["counts"] == counts
    undo.click()
    assert shown(page) == first
    redo.click()
    page.keyboard.press("Control+Shift+Z")
    assert shown(page) == third
    expect(bar).to_have_attribute("aria-valuetext", "4 of 32 experts")
    expect(redo).to_be_disabled()
    # A schedule is undone as well: its counts were on screen before.
    late = even | {"counts": [27, 20, 17, 14, 11, 7], "seen": sent(page)[-1]["at"]}
    page.evaluate("data => { window.draw(data); }", late)
    assert shown(page) == late["counts"]
    undo.click()
    assert shown(page) == third


@pytest.mark.slow
def test_keys_that_are_typed_elsewhere_are_left_alone(page):
    draw(page, 6, [64] * 6)
    bars(page).nth(2).focus()
    page.keyboard.press("ArrowUp")
    edited = shown(page)
    page.evaluate("document.body.append(document.createElement('input'))")
    page.locator("input").fill("text")
    page.keyboard.press("Control+z")
    assert shown(page) == edited


@pytest.mark.slow
@pytest.mark.parametrize("motion", ["reduce", "no-preference"])
def test_bars_do_not_move_for_those_who_ask_for_that(page, motion):
    page.emulate_media(reduced_motion=motion)
    draw(page, 6, [64] * 6)
    draw(page, 6, [60, 68, 64, 64, 64, 64])
    found = page.locator(".column .bar").first.evaluate(
        "bar => getComputedStyle(bar).transitionDuration"
    )
    assert (found == "0s") == (motion == "reduce")


@pytest.fixture(scope="module")
def in_browser(chromium):
    """Call an exported function of one of the editor's modules with each of many argument lists."""
    page = chromium.new_page()

    def _call(module, body, cases):
        source = (SCRIPTS / module).read_text()
        return page.evaluate(
            """async ([source, body, cases]) => {
                const url = URL.createObjectURL(new Blob([source], {type: "text/javascript"}));
                const module = await import(url);
                const call = new Function("module", "given", body);
                return JSON.parse(cases).map((given) => call(module, given));
            }""",
            [source, body, json.dumps(cases)],
        )

    yield _call
    page.close()


def random_case(seed):
    """Layers of various sizes, groups and top-k, counts that the rules allow, one wanted number."""
    draw = random.Random(seed)  # noqa: S311  (cases, not secrets)
    groups = draw.choice([1, 1, 1, 2, 4])
    multiple = draw.choice([1, 1, 2, 4])
    same = draw.random() < 0.5
    sizes = (
        [draw.choice([16, 24, 40])] * 9 if same else [draw.choice([16, 24, 40]) for _ in range(9)]
    )
    layers = tuple(
        MoELayer(2 * i + 1, size, 2, groups, 1)
        for i, size in enumerate(sizes[: draw.randint(2, 9)])
    )
    protected = frozenset(layer.index for layer in layers if draw.random() < 0.1)
    constraints = Constraints(multiple_of=multiple, protected=protected)
    units = expert_units(layers, constraints)
    gone = map(draw.choice, choices_of(units))
    counts = [size - number for size, number in zip(units.sizes, gone, strict=True)]
    locked = [i for i in range(len(layers)) if draw.random() < 0.2]
    index = draw.randrange(len(layers))
    wanted = draw.randint(-3, sizes[index] + 3)
    return layers, constraints, units, counts, locked, index, wanted


def rules_of(units):
    return {
        "sizes": list(units.sizes),
        "low": [size - most for size, most in zip(units.sizes, units.most, strict=True)],
        "high": [size - least for size, least in zip(units.sizes, units.least, strict=True)],
        "step": units.step,
    }


def numbers_of(case):
    """What the layer could be asked to keep."""
    units, row = case[2], case[5]
    low, high = (units.sizes[row] - end[row] for end in (units.most, units.least))
    return range(low, high + 1, units.step)


def python_says(case, kept):
    """Counts after the layer was set to `kept`; None where Python refuses."""
    layers, constraints, _, counts, locked, index, _ = case
    fixed = {layers[i].index: counts[i] for i in locked} | {layers[index].index: kept}
    before = {layer.index: count for layer, count in zip(layers, counts, strict=True)}
    asked = Constraints(constraints.multiple_of, constraints.protected, fixed=fixed)
    try:
        return list(from_counts(expert_units(layers, asked), before).keep)
    except PlanError:
        return None


CASES = [random_case(seed) for seed in range(400)]


def test_rebalance_is_the_rule_of_python(in_browser):
    """Every number that the layer could be asked to keep, possible or not."""
    asked = [(case, kept) for case in CASES if case[5] not in case[4] for kept in numbers_of(case)]
    answers = in_browser(
        "rebalance.js",
        "return module.rebalance(given.rules, given.counts, new Map(given.fixed));",
        [
            {
                "rules": rules_of(case[2]),
                "counts": case[3],
                "fixed": [*((i, case[3][i]) for i in case[4]), (case[5], kept)],
            }
            for case, kept in asked
        ],
    )
    expected = [python_says(case, kept) for case, kept in asked]
    assert answers == expected
    # The cases say something: many moves, and many that are not possible.
    kinds = Counter(answer is None for answer in answers)
    assert len(answers) > 2000
    assert min(kinds[True], kinds[False]) > 300


def test_a_move_ends_at_the_reachable_number_nearest_to_the_hand(in_browser):
    names = ("rules", "counts", "locked", "index", "wanted")
    answers = in_browser(
        "rebalance.js",
        "return module.move(given.rules, given.counts, new Set(given.locked), given.index, "
        "given.wanted);",
        [
            dict(zip(names, (rules_of(units), *others), strict=True))
            for _, _, units, *others in CASES
        ],
    )
    for case, answer in zip(CASES, answers, strict=True):
        _, _, _, counts, locked, index, wanted = case
        assert sum(answer) == sum(counts)
        assert all(answer[i] == counts[i] for i in locked)
        if index in locked:
            assert answer == counts
            continue
        # By brute force: of all numbers that Python takes, none is nearer to what was wanted.
        possible = [kept for kept in numbers_of(case) if python_says(case, kept) is not None]
        assert answer[index] in possible
        clamped = min(max(wanted, min(possible)), max(possible))
        assert abs(answer[index] - clamped) == min(abs(kept - clamped) for kept in possible)
        assert answer == python_says(case, answer[index])


def test_history_goes_back_and_forth_and_forgets_what_was_undone(in_browser):
    body = """
        const {remember, step} = module;
        const history = {past: [], future: []};
        const state = (n) => ({counts: [n], locked: []});
        remember(history, state(1));
        remember(history, state(2));
        const back = step(history, state(3), false);
        const further = step(history, back, false);
        const none = step(history, further, false);
        const again = step(history, further, true);
        remember(history, again);
        return [back, further, none === undefined, again].map((s) => s.counts?.[0] ?? s)
            .concat(history.future.length, history.past.length);
    """
    (answer,) = in_browser("history.js", body, [0])
    # After 2 was reached again and left, nothing can be redone; 1 and 2 can be undone to.
    assert answer == [2, 1, True, 2, 0, 2]


def test_a_layer_moved_there_and_back_leaves_nothing_behind(in_browser):
    """Moves of one gesture count from where it began, so the others get back what they gave."""
    rules = {"sizes": [32] * 6, "low": [4] * 6, "high": [32] * 6, "step": 1}
    path = [17, 22, 30, 12, 16]
    answers = in_browser(
        "rebalance.js",
        "return module.move(given.rules, given.counts, new Set(), 2, given.wanted);",
        [{"rules": rules, "counts": [16] * 6, "wanted": wanted} for wanted in path],
    )
    # Six more: the five others give one each, and the first of them, by the tie, one more.
    assert answers[1] == [14, 15, 22, 15, 15, 15]
    assert answers[-1] == [16] * 6


def test_the_prediction_that_follows_a_drag_is_that_of_python(page):
    """Of a known plan too, whose own measurement does not count; and each layer alone."""
    rng, levels = np.random.default_rng(5), np.array([0, 16, 64, 112])
    curves = []
    for corpus in ("a", "b"):
        steps = rng.uniform(-0.01, 0.4, size=(6, 4, 3)).cumsum(axis=1)
        by_sample = tuple(np.vstack([np.zeros(3), step[1:]]) for step in steps)
        layers = tuple(Curve(levels, rows.mean(axis=1)) for rows in by_sample)
        curves.append(Curves(layers, {}, corpus=corpus, samples=3, by_sample=by_sample))
    plans = [tuple(map(int, plan)) for plan in rng.integers(0, 113, size=(40, 6))]
    known = {plan: {"a": rng.uniform(0, 2), "b": rng.uniform(0, 2)} for plan in plans[:9]}
    error = SumError(Sensitivity(tuple(curves), "nll"), known)
    plans += [(0,) * 6, (112,) * 6]
    expected = [predict(error, plan).mean for plan in plans]
    calls = "([terms, plans]) => import('./predict.js').then(({predictedLoss, lossAlone}) => "
    losses = page.evaluate(
        f"{calls} plans.map(plan => predictedLoss(terms, plan)))", [error.terms(), plans]
    )
    assert losses == pytest.approx(expected, rel=1e-9, abs=1e-12)
    guesses = page.evaluate(
        "([terms, plans]) => import('./predict.js').then(({isGuess}) => "
        "plans.map(plan => isGuess(terms, plan)))",
        [error.terms(), [*plans, (112, 112, 112, 112, 0, 0), (112, 112, 112, 0, 0, 0)]],
    )
    ends = [(112, 112, 112, 112, 0, 0), (112, 112, 112, 0, 0, 0)]
    assert guesses == [error.is_guess(plan) for plan in [*plans, *ends]]
    assert set(guesses) == {True, False}
    alone = page.evaluate(f"{calls} plans[0].map((n, i) => lossAlone(terms, i, n)))",
                          [error.terms(), plans])  # fmt: skip
    by_hand = [
        np.mean([np.interp(n, levels, rows.by_sample[i].mean(axis=1)) for rows in curves])
        for i, n in enumerate(plans[0])
    ]
    assert alone == pytest.approx(by_hand, rel=1e-9)
    # While a bar is held, before anything is sent.
    draw(page, 6, [64] * 6, terms=error.terms())
    bar = bars(page).nth(2).bounding_box()
    page.mouse.move(bar["x"] + 5, bar["y"] + 150)
    page.mouse.down()
    page.mouse.move(bar["x"] + 5, bar["y"] + 60, steps=4)
    removed = tuple(128 - count for count in shown(page))
    assert removed != (64,) * 6
    assert sent(page) == []
    kind = "a guess: loss" if error.is_guess(removed) else "predicted loss"
    told = f"{kind} {predict(error, removed).mean:+z.2f}".replace("-", "\u2212")
    expect(page.locator(".moved")).to_contain_text(told)
    expect(page.locator(".alone path")).to_have_count(6)
    page.mouse.up()
