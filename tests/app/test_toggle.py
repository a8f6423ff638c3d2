"""What a toggle of Explore costs, counted and not timed: how much of the program runs."""

import threading
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[2]
PRODUCT = [ROOT / top for top in ("app", "analysis", "pruning")]


def test_a_toggle_runs_little_of_the_program(open_page):
    test = open_page("explore", criterion="ean")
    for alpha in (1, 0):  # caches
        test.segmented_control(key="alpha").set_value(alpha).run()
    calls = Counter()

    def count(frame, event, _):
        file = Path(frame.f_code.co_filename)
        if event == "call" and any(file.is_relative_to(top) for top in PRODUCT):
            calls[file] += 1

    threading.setprofile(count)  # of threads that begin: AppTest runs the script in one
    try:
        test.segmented_control(key="alpha").set_value(1).run()
    finally:
        threading.setprofile(None)
    assert not test.exception
    # 8,800 calls in 96 modules (fewer where other tests have filled caches). It was 10,600 while
    # each tensor of each expert was looked at.
    assert 1_000 < sum(calls.values()) < 10_000
    assert len(calls) <= 96
