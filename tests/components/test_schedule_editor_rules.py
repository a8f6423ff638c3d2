"""The browser's rule of who gives and takes, against Python's, in Chromium on many cases."""

import json
import random
from collections import Counter
from pathlib import Path

import pytest

from analysis.errors import PlanError
from analysis.families import MoELayer
from pruning.constraints import Constraints, rooms_of
from pruning.schedules import from_counts

pytestmark = pytest.mark.e2e
SCRIPTS = Path(__file__).parents[2] / "app" / "components" / "schedule_editor" / "browser"


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
    rooms = rooms_of(layers, constraints)
    counts = [room.size - draw.randrange(room.least, room.most + 1, room.step) for room in rooms]
    locked = [i for i in range(len(layers)) if draw.random() < 0.2]
    index = draw.randrange(len(layers))
    wanted = draw.randint(-3, sizes[index] + 3)
    return layers, constraints, rooms, counts, locked, index, wanted


def rules_of(rooms):
    return {
        "sizes": [room.size for room in rooms],
        "low": [room.size - room.most for room in rooms],
        "high": [room.size - room.least for room in rooms],
        "step": rooms[0].step,
    }


def numbers_of(case):
    """What the layer could be asked to keep."""
    room = case[2][case[5]]
    return range(room.size - room.most, room.size - room.least + 1, room.step)


def python_says(case, kept):
    """Counts after the layer was set to `kept`; None where Python refuses."""
    layers, constraints, _, counts, locked, index, _ = case
    fixed = {layers[i].index: counts[i] for i in locked} | {layers[index].index: kept}
    before = {layer.index: count for layer, count in zip(layers, counts, strict=True)}
    asked = Constraints(constraints.multiple_of, constraints.protected, fixed=fixed)
    try:
        return list(from_counts(layers, before, asked).keep)
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
            dict(zip(names, (rules_of(rooms), *others), strict=True))
            for _, _, rooms, *others in CASES
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
