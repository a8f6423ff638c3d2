"""What a toggle of Explore costs, counted and not timed: how much of the program runs."""

import threading
from collections import Counter
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
PRODUCT = [ROOT / top for top in ("app", "analysis", "pruning")]


def test_a_toggle_runs_little_of_the_program(open_page):
    test = open_page("explore", criterion="ean")
    for alpha in (1, 0):  # caches
        test.segmented_control(key="alpha").set_value(alpha).run()
    calls, deepest = Counter(), 0

    @cache
    def is_ours(file):
        return any(Path(file).is_relative_to(top) for top in PRODUCT)

    def count(frame, event, _):
        nonlocal deepest
        if event != "call" or not is_ours(frame.f_code.co_filename):
            return
        calls[frame.f_code.co_filename] += 1
        outer = frame
        depth = 0
        while outer is not None:
            depth += is_ours(outer.f_code.co_filename)
            outer = outer.f_back
        deepest = max(deepest, depth)

    threading.setprofile(count)  # of threads that begin: AppTest runs the script in one
    try:
        test.segmented_control(key="alpha").set_value(1).run()
    finally:
        threading.setprofile(None)
    assert not test.exception
    # 2,960 calls in 83 modules, 12 deep (a few more or less where other tests have filled caches);
    # before there was one study 9,100 calls in 96 modules, 22 deep.
    assert 1_000 < sum(calls.values()) < 3_300
    assert len(calls) <= 84
    assert deepest <= 12
