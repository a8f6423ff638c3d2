"""How far a whole task is, and the time left: by a clock that the test sets."""

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


def counting(phase, total, **facts):
    for done in range(total + 1):
        yield Progress(phase, done, total, **facts)
    return phase


def test_a_whole_is_the_sum_of_what_its_parts_cost():
    parts = Parts({"load": {"read": 2.0}, "run": {"multiply": 6.0, "compare": 2.0}})

    def stated(name, total, costs):
        for done in range(total + 1):
            share = {kind: amount * done / total for kind, amount in costs.items()}
            yield Progress(name, done, total, whole=Whole(costs, share))
        return name

    def task():
        yield from parts.run("load", stated("loading", 1, {"read": 2.0}))
        return (
            yield from parts.run("run", stated("running", 4, {"multiply": 6.0, "compare": 2.0}))
        )

    value, steps = steps_of(task())
    assert value == "running"
    # 0 and 2 of 10, then quarters of the other 8.
    assert [step.whole.fraction for step in steps] == [0, 0.2, 0.2, 0.4, 0.6, 0.8, 1]
    assert steps[4].whole.done == {"read": 2.0, "multiply": 3.0, "compare": 1.0}


def test_phases_are_parts_and_a_part_ends_where_the_next_begins():
    parts = Parts({"loading": {"read": 3.0}, "writing": {"a": 1.0}, "writing layer 1": {"a": 4.0}})

    def task():
        yield Progress("loading", 0, 1)
        yield from counting("writing", 1)
        yield from counting("writing", 2, at="layer 1")
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
    pace = Pace(clock, lambda: {"read": 1.0, "load": 2.0, "multiply": 3.0, "fit": 4.0})
    total = {"read": 10.0, "load": 10.0, "multiply": 10.0, "fit": 10.0}
    pace.take(Progress("loading", 0, 0, whole=Whole(total)))
    clock.now += 20.0  # all bytes that were to be read, in twice the time
    done = {"read": 10.0}
    pace.take(Progress("loading", 0, 0, whole=Whole(total, done)))
    assert pace.seconds_left == pytest.approx(2 * 10 * (2.0 + 3.0 + 4.0))  # all that is known
    clock.now += 30.0
    done |= {"multiply": 10.0}
    pace.take(Progress("running", 0, 0, whole=Whole(total, done)))
    assert pace.seconds_left == pytest.approx(2 * 10 * 2.0 + 10 * 4.0)


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
    # 2 s a unit, half of what is known: so are runs, and what is not known, the median of three.
    assert pace.seconds_left == pytest.approx(100 * 0.5 + 5 * 1.0)


def test_the_share_never_falls_though_more_work_comes_up(clock):
    pace = Pace(clock)
    wholes = [
        Whole({"a": 10.0}, {"a": 5.0}),
        Whole({"a": 20.0}, {"a": 6.0}),
        Whole({"a": 20.0}, {"a": 12.0}),
    ]
    shares = []
    for whole in wholes:
        clock.now += 1
        pace.take(Progress("", 0, 0, whole=whole))
        pace.take(Progress("", 0, 0, note="a step that does not say"))
        shares.append(pace.fraction)
    assert shares == [0.5, 0.5, 0.6]


def test_a_resumed_run_counts_only_its_own_work(clock):
    pace, parts = Pace(clock), Parts({"running": {"a": 10.0}}, {"running": 0.6})
    for step in parts.by_phase(iter_of([6, 7, 8])):
        pace.take(step)
        clock.now += 5
    # One of ten every 5 s, though 6 of them took this run no time.
    assert pace.fraction == pytest.approx(0.8)
    assert pace.seconds_left == pytest.approx(2 * 5 - 5)


def iter_of(dones):
    for done in dones:
        yield Progress("running", done, 10)


def test_costs_are_amounts_over_rates():
    assert cost("read", 3 * RATES["read"]) == 3
    with pytest.raises(KeyError):
        cost("unheard of", 1)


def test_a_task_after_another_that_nobody_stated_adds_its_work(clock):
    pace = Pace(clock)
    for total, dones in ((10.0, (0.0, 10.0)), (30.0, (0.0, 10.0))):
        for done in dones:
            pace.take(Progress("", 0, 0, whole=Whole({"a": total}, {"a": done})))
            clock.now += 2 if done == 0 else 0
    # 10 took 2 s, twice; 20 are left.
    assert pace.seconds_left == pytest.approx(4)
    assert pace.fraction == 20 / 40


def test_a_part_ends_with_its_task_whatever_it_says(clock):
    names = ("silent", "phases", "cached", "work")
    parts, pace = Parts({name: {"a": 10.0} for name in names}), Pace(clock)

    def silent():
        yield from ()

    def phases():
        # What they count is not of the part, which states 8 and needs 4.
        yield Progress("reading the corpus", 1, 1)
        yield Progress("running", 0, 0, whole=Whole({"a": 8.0}))
        clock.now += 4
        yield Progress("running", 0, 0, whole=Whole({"a": 8.0}, {"a": 4.0}))

    def cached():
        yield Progress("cached", 1, 1, whole=NOTHING)

    def work():
        yield Progress("running", 0, 0, whole=Whole({"a": 12.0}))
        clock.now += 6
        yield Progress("running", 0, 0, whole=Whole({"a": 12.0}, {"a": 6.0}))

    def task():
        tasks = (silent(), phases(), cached(), work())
        for name, steps in zip(names, tasks, strict=True):
            yield from parts.run(name, steps)
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

    def task(total):
        for done in (0.0, total):
            yield Progress("running", 0, 0, whole=Whole({"a": total}, {"a": done}))

    totals = []
    for name, waiting, total in ("one", ("two", "three"), 4.0), ("two", ("three",), 7.0):
        for step in parts.run(name, task(total), alike=waiting):
            totals.append(step.whole.total["a"])
    # 4 + 4 + 4 + 10, then 4 + 7 + 7 + 10.
    assert totals == [22, 22, 28, 28]


def test_what_is_cached_and_what_a_phase_counts_say_nothing_of_the_whole(clock):
    pace = Pace(clock)
    pace.take(Progress("cached", 4, 4, whole=NOTHING))
    assert pace.fraction is None
    pace.take(Progress("reading the corpora", 1, 2))
    assert pace.fraction == 0.5
    for done in (0.0, 2.0):
        pace.take(Progress("running", 0, 0, whole=Whole({"a": 8.0}, {"a": done})))
        pace.take(Progress("a phase of its own", 9, 10))
        assert pace.fraction == done / 8
    # All that was stated is done: what follows is a task that nobody stated.
    pace.take(Progress("running", 0, 0, whole=Whole({"a": 8.0}, {"a": 8.0})))
    assert pace.fraction == 1
    pace.take(Progress("converting", 0, 0))
    assert pace.fraction is None
    pace.take(Progress("converting", 3, 4))
    assert pace.fraction == 0.75


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
