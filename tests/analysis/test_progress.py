"""How far a whole task is, and the time left: by a clock that the test sets."""

from itertools import chain

import pytest

from analysis.drain import drain
from analysis.pace import Pace
from analysis.progress import NOTHING, RATES, Parts, Progress, Tally, Whole, cost


class Clock:
    """Shows what it is set to."""

    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


def steps_of(task):
    steps = []
    value = drain(task, steps.append)
    return value, steps


def stated(total, *dones):
    """A task that states so much of one cost, and what of it is done at each step."""
    for done in dones:
        yield Progress("running", 0, 0, whole=Whole({"a": total}, {"a": done}))


def counting(phase, *dones, total, **facts):
    for done in dones:
        yield Progress(phase, done, total, **facts)


def test_a_whole_is_the_sum_of_what_its_parts_cost():
    costs = {"load": {"read": 2.0}, "run": {"multiply": 6.0, "compare": 2.0}}
    parts = Parts(costs)

    def part(name, total):
        for done in range(total + 1):
            share = {kind: amount * done / total for kind, amount in costs[name].items()}
            yield Progress(name, done, total, whole=Whole(costs[name], share))
        return name

    def task():
        yield from parts.run("load", part("load", 1))
        return (yield from parts.run("run", part("run", 4)))

    value, steps = steps_of(task())
    assert value == "run"
    # 0 and 2 of 10, then quarters of the other 8.
    assert [step.whole.fraction for step in steps] == [0, 0.2, 0.2, 0.4, 0.6, 0.8, 1]
    assert steps[4].whole.done == {"read": 2.0, "multiply": 3.0, "compare": 1.0}


def test_phases_are_parts_and_a_part_ends_where_the_next_begins():
    parts = Parts({"loading": {"read": 3.0}, "writing": {"a": 1.0}, "writing layer 1": {"a": 4.0}})

    def task():
        yield Progress("loading", 0, 1)
        yield from counting("writing", 0, 1, total=1)
        yield from counting("writing", 0, 1, 2, total=2, at="layer 1")
        yield Progress("a phase that nobody stated", 0, 9)

    _, steps = steps_of(parts.by_phase(task()))
    wholes = [step.whole.fraction for step in steps]
    assert wholes == [0, 3 / 8, 4 / 8, 4 / 8, 6 / 8, 1, 1]


def test_what_a_part_states_replaces_what_was_expected():
    parts = Parts({"known": {"read": 5.0}, "other": {"read": 5.0}})

    def known():
        yield Progress("cached", 1, 1, whole=NOTHING)

    def other():
        tally = Tally({"read": 8.0}, {"read": 2.0})
        yield Progress("reading", 0, 0, whole=tally.whole)
        tally.add("read", 4.0)
        yield Progress("reading", 0, 0, whole=tally.whole)
        # It ends here: the last 2 were not needed.

    def task():
        yield from parts.run("known", known())
        yield from parts.run("other", other())

    _, steps = steps_of(task())
    assert [step.whole.fraction for step in steps] == [0, 2 / 8, 6 / 8]
    assert steps[-1].whole.before == {"read": 2.0}
    assert parts.whole.fraction == 1


def test_work_that_is_left_out_is_expected_no_longer():
    tally = Tally({"fit": 6.0, "invert": 4.0})
    tally.add("fit", 1.0)
    tally.leave_out({"fit": 3.0, "invert": 2.0})
    assert tally.whole == Whole({"fit": 3.0, "invert": 2.0}, {"fit": 1.0, "invert": 0.0})


def test_bytes_say_how_slow_other_bytes_are_and_not_products(clock):
    pace = Pace(clock, lambda: {"read": 1.0, "read float32": 2.0, "multiply": 3.0, "fit": 4.0})
    total = {"read": 10.0, "read float32": 10.0, "multiply": 10.0, "fit": 10.0}
    pace.take(Progress("loading", 0, 0, whole=Whole(total)))
    clock.now += 20.0  # all bytes that were to be read, in twice the time
    done = {"read": 10.0}
    pace.take(Progress("loading", 0, 0, whole=Whole(total, done)))
    # What is known counts as three hundredths of the work: (20 + 0.3) s where 10.3 were expected.
    slower = 20.3 / 10.3
    assert pace.seconds_left == pytest.approx(slower * 10 * 2.0 + 10 * (3.0 + 4.0))
    clock.now += 30.0
    done |= {"multiply": 10.0}
    pace.take(Progress("running", 0, 0, whole=Whole(total, done)))
    assert pace.seconds_left == pytest.approx(slower * 10 * 2.0 + 10 * 4.0)


def test_what_threads_check_and_what_opens_say_nothing_of_other_work(clock):
    usual = {"check": 4.0, "open": 1.0, "read": 1.0, "multiply": 3.0}
    pace, total = Pace(clock, lambda: usual), dict.fromkeys(usual, 10.0)
    pace.take(Progress("verifying", 0, 0, whole=Whole(total)))
    clock.now += 10.0  # on four threads
    done = {"check": 10.0}
    pace.take(Progress("verifying", 0, 0, whole=Whole(total, done)))
    clock.now += 90.0
    done |= {"open": 10.0}
    pace.take(Progress("verifying", 0, 0, whole=Whole(total, done)))
    assert pace.seconds_left == pytest.approx(10 * (1.0 + 3.0))


def test_a_task_that_is_stopped_or_fails_stops_its_parts():
    seen = []

    def inner():
        try:
            yield Progress("running", 0, 2)
            yield Progress("running", 1, 2)
        except KeyError:
            seen.append("told")
            yield Progress("running", 2, 2)
        finally:
            seen.append("closed")

    task = Parts({"running": {"a": 1.0}}).by_phase(inner())
    next(task)
    task.close()
    assert seen == ["closed"]
    task = Parts({"running": {"a": 1.0}}).by_phase(inner())
    next(task)
    assert task.throw(KeyError).done == 2
    assert list(task) == []
    assert seen == ["closed", "told", "closed"]


def test_the_time_left_follows_from_the_rates_of_the_run(clock):
    pace, tally = Pace(clock), Tally({"read": 10.0, "multiply": 100.0})

    def go(seconds, **work):
        clock.now += seconds
        for kind, amount in work.items():
            tally.add(kind, amount)
        pace.take(Progress("", 0, 0, whole=tally.whole))
        return pace.seconds_left

    assert (pace.fraction, pace.seconds_left) == (None, None)
    clock.now += 50  # what comes before the whole is stated is no part of it
    assert go(0) is None
    # A tenth of all reading took 3 s: all costs are taken to be as slow.
    assert go(3, read=1.0) == pytest.approx(3 * (9 + 100))
    # Running is ten times as fast as reading, which is seen from the second kind on.
    assert go(3, multiply=10.0) == pytest.approx(3 * 9 + 0.3 * 90)
    # Between two steps it runs down.
    clock.now += 4
    assert pace.seconds_left == pytest.approx(3 * 9 + 0.3 * 90 - 4)
    # A step with both: 12 s, where 6 were expected, are shared as expected. They are two thirds
    # of each kind's seconds, so that what took the first third weighs 1/9.
    left = go(8, read=1.0, multiply=10.0)
    reading, running = (3 / 9 + 6) / (1 / 9 + 1), (3 / 9 + 6) / (10 / 9 + 10)
    assert left == pytest.approx(8 * reading + 80 * running)
    assert pace.fraction == pytest.approx(22 / 110)


def test_work_to_come_takes_as_much_longer_as_what_is_done(clock):
    pace = Pace(clock, lambda: {"read": 4.0, "multiply": 1.0, "hash": 2.0})
    total = {"read": 10.0, "multiply": 100.0, "gone": 5.0}
    pace.take(Progress("", 0, 0, whole=Whole(total)))
    clock.now += 20
    pace.take(Progress("", 0, 0, whole=Whole(total, {"read": 10.0})))
    # 2 s a unit, half of what is known: so are other bytes. Of products rates tell, and of what is
    # not known the median of those of products.
    assert pace.seconds_left == pytest.approx(100 * 1.0 + 5 * 1.0)


def test_one_kind_of_work_that_is_far_slower_than_usual_is_not_all_of_them(clock):
    kinds = ("fit", "invert", "compare", "observe", "multiply")
    pace, total, done = Pace(clock), dict.fromkeys(kinds, 10.0), dict[str, float]()
    pace.take(Progress("", 0, 0, whole=Whole(total)))
    for kind, seconds in {"fit": 5, "invert": 170, "compare": 13}.items():
        clock.now += seconds
        done |= {kind: 10.0}
        pace.take(Progress("", 0, 0, whole=Whole(total, done)))
    assert pace.seconds_left == pytest.approx(20 * 1.3)  # the median, of 0.5, 17 and 1.3
    clock.now += 30  # of a forward, which tells of others
    pace.take(Progress("", 0, 0, whole=Whole(total, done | {"observe": 10.0})))
    assert pace.seconds_left == pytest.approx(10 * 3.0)


def test_rates_that_are_known_tell_before_any_work_is_done(clock):
    total = {"read": 10.0, "multiply": 100.0}
    pace = Pace(clock, lambda: {"multiply": 0.5})
    pace.take(Progress("", 0, 0, whole=Whole(total)))
    clock.now += 2
    assert pace.seconds_left == pytest.approx(10 * 0.5 + 100 * 0.5 - 2)
    pace.take(Progress("running", 0, 0, whole=Whole(total)))  # what came before was its start
    assert pace.seconds_left == pytest.approx(55)
    slow = Pace(clock, lambda: {"read": 0.5})  # 5 s of them, and more of what it does not tell
    slow.take(Progress("", 0, 0, whole=Whole(total)))
    assert slow.seconds_left is None


def test_what_passes_until_another_phase_begins_is_nobody_s_work(clock):
    pace, total = Pace(clock), {"read": 10.0, "multiply": 10.0}

    def go(seconds, phase, **done):
        clock.now += seconds
        pace.take(Progress(phase, 0, 0, whole=Whole(total, done)))

    go(0, "loading")
    go(7, "calibrating", read=5.0)  # read before it says so
    assert pace.seconds_left == pytest.approx(5 * 7 / 5 + 10 * 7 / 5)
    go(9, "loading the next", read=5.0)
    go(5, "loading the next", read=10.0)
    before = 7 * (7 / 12) ** 2  # of what took 7 of 12 s
    rate = (before + 5) / (5 * (7 / 12) ** 2 + 5)
    assert pace.seconds_left == pytest.approx(10 * rate)


def test_a_known_rate_counts_as_a_little_work(clock):
    """3 in 100: after 2 at 2.5 s a unit, (2 x 2.5 + 3 x 1.0) / 5."""
    pace = Pace(clock, lambda: {"multiply": 1.0})
    pace.take(Progress("", 0, 0, whole=Whole({"multiply": 100.0})))
    clock.now += 5
    pace.take(Progress("", 0, 0, whole=Whole({"multiply": 100.0}, {"multiply": 2.0})))
    assert pace.seconds_left == pytest.approx(98 * (2 * 2.5 + 3 * 1.0) / 5)


def test_the_share_never_falls_though_more_work_comes_up(clock):
    pace, shares = Pace(clock), []
    for step in (*stated(10.0, 5.0), *stated(20.0, 6.0, 12.0)):
        clock.now += 1
        pace.take(step)
        pace.take(Progress("", 0, 0, note="a step that does not say"))
        shares.append(pace.fraction)
    assert shares == [0.5, 0.5, 0.6]


def test_a_resumed_run_counts_only_its_own_work(clock):
    pace, parts = Pace(clock), Parts({"running": {"a": 10.0}}, {"running": 0.6})
    for step in parts.by_phase(counting("running", 6, 7, 8, total=10)):
        pace.take(step)
        clock.now += 5
    # One of ten every 5 s, though 6 of them took this run no time.
    assert pace.fraction == pytest.approx(0.8)
    assert pace.seconds_left == pytest.approx(2 * 5 - 5)


def test_costs_are_amounts_over_rates():
    assert cost("read", 3 * RATES["read"]) == 3
    with pytest.raises(KeyError):
        cost("unheard of", 1)


def test_a_task_after_another_that_nobody_stated_adds_its_work(clock):
    pace = Pace(clock)
    for total in (10.0, 30.0):
        for seconds, step in zip((0, 2), stated(total, 0.0, 10.0), strict=True):
            clock.now += seconds
            pace.take(step)
    # 10 took 2 s, twice; 20 are left.
    assert pace.seconds_left == pytest.approx(4)
    assert pace.fraction == 20 / 40


def test_a_part_ends_with_its_task_whatever_it_says(clock):
    def taking(seconds, total, done):
        first, last = stated(total, 0.0, done)
        yield first
        clock.now += seconds
        yield last

    tasks = {
        "silent": (),
        # What is counted before is not of the part, which states 8 and needs 4.
        "phases": chain([Progress("reading the corpus", 1, 1)], taking(4, 8.0, 4.0)),
        "cached": [Progress("cached", 1, 1, whole=NOTHING)],
        "work": taking(6, 12.0, 6.0),
    }
    parts, pace = Parts({name: {"a": 10.0} for name in tasks}), Pace(clock)

    def task():
        for name, steps in tasks.items():
            yield from parts.run(name, (step for step in steps))
        yield Progress("", 0, 0, whole=parts.whole)

    shares, left = [], []
    for step in task():
        pace.take(step)
        shares.append(pace.fraction)
        left.append(pace.seconds_left)
    assert shares == [0, 0, 4 / 28, 4 / 14, 4 / 14, 10 / 16, 1]
    # A unit takes 1 s: what was not needed is no work that took no time.
    assert left == [None, None, 24, 10, 12, 6, 0]


def test_parts_that_are_alike_cost_what_the_first_states():
    parts = Parts({name: {"a": 10.0} for name in ("one", "two", "three", "other")})
    totals = []
    for name, waiting, total in ("one", ("two", "three"), 4.0), ("two", ("three",), 7.0):
        for step in parts.run(name, stated(total, 0.0, total), alike=waiting):
            totals.append(step.whole.total["a"])
    # 4 + 4 + 4 + 10, then 4 + 7 + 7 + 10.
    assert totals == [22, 22, 28, 28]


def test_what_is_cached_and_what_a_phase_counts_say_nothing_of_the_whole(clock):
    pace, (begun, part, whole) = Pace(clock), stated(8.0, 0.0, 2.0, 8.0)
    for step, share in (
        (Progress("cached", 4, 4, whole=NOTHING), None),
        (Progress("reading the corpora", 1, 2), 0.5),
        *((begun, 0), (Progress("a phase of its own", 9, 10), 0)),
        *((part, 2 / 8), (Progress("a phase of its own", 9, 10), 2 / 8)),
        # All that was stated is done: what follows is a task that nobody stated.
        (whole, 1),
        *((Progress("converting", 0, 0), None), (Progress("converting", 3, 4), 0.75)),
    ):
        pace.take(step)
        assert pace.fraction == share


def test_without_a_whole_share_and_time_are_of_the_phase(clock):
    pace = Pace(clock)

    def go(seconds, phase, done, total, at=""):
        clock.now += seconds
        pace.take(Progress(phase, done, total, at=at))
        return pace.fraction, pace.seconds_left

    assert go(9, "loading", 0, 3) == (None, None)
    # A tenth of the samples took 2 s; where it resumes at 30 of 100, those took none.
    assert go(5, "running", 0, 100) == (None, None)
    assert go(2, "running", 10, 100) == (0.1, pytest.approx(18))
    assert go(1, "running", 30, 100, "plan 2") == (0.3, None)
    assert go(5, "running", 40, 100, "plan 2") == (0.4, pytest.approx(30))
    # The next plan begins again; at the end of a phase nothing is known of the next.
    assert go(1, "running", 20, 100, "plan 2") == (0.2, None)
    assert go(1, "running", 100, 100, "plan 2") == (None, None)
    assert go(1, "writing", 0, 0) == (None, None)
