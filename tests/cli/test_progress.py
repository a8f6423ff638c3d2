"""What a person, a log or a program sees of a task's progress."""

import io
import json
import signal
import time

import pytest
from rich.console import Console

from analysis.pace import Pace
from analysis.progress import NOTHING, Parts, Progress, Whole
from analysis.stats.rates import known_rates
from app.console import Course, Speech, conclude, follow, speech
from app.progress_shown import Lines, count_of_step, lines_of, one_bar


class Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def log(clock):
    """Steps at times -> the lines that a log has of them."""

    def run(*steps, **options):
        pace, written = Pace(clock), []
        lines = Lines(pace, written.append, **options)
        for seconds, step in steps:
            clock.now = seconds
            if step is None:
                lines.tick()
            else:
                pace.take(step)
                lines.take(step)
        return written

    return run


def calibrating(done, share, at=""):
    whole = Whole({"multiply": 100.0}, {"multiply": 100.0 * share})
    return Progress("calibrating", done, 3072, "tokens", at=at, whole=whole)


def test_a_log_has_a_line_a_minute_and_one_where_a_phase_begins(log):
    lines = log(
        (0, Progress("loading the model", 0, 3072, "tokens")),
        (5, None),
        (11, None),
        (50, None),
        (70, calibrating(0, 0.0)),
        (72, calibrating(31, 0.01, "layer 3")),
        (120, calibrating(768, 0.25, "layer 4")),
        (130, calibrating(922, 0.3, "layer 4")),
        (131, Progress("loading the model", 0, 3072, "tokens")),
        (200, None),
    )
    assert lines == [
        "loading the model",
        "calibrating: 0%",
        # 60 s for 30 of 100, so 70 take 140 s more.
        "calibrating: 30%, layer 4, 922/3,072 tokens, 2 min left",
        "loading the model: 30%, 70 s left",
    ]


def test_a_command_of_a_few_seconds_says_nothing(log):
    assert log((0, calibrating(0, 0.0)), (4, calibrating(3000, 0.9)), (9, None)) == []


def test_a_program_reads_the_same_as_json(log):
    (line,) = log((0, calibrating(0, 0.0)), (30, calibrating(1024, 0.25)), as_json=True)
    assert json.loads(line)["progress"] == {
        "phase": "calibrating",
        "at": "",
        "done": 1024,
        "total": 3072,
        "unit": "tokens",
        "fraction": 0.25,
        "seconds_left": 90.0,
    }


def test_a_note_is_json_where_progress_is(capsys):
    def task():
        yield Progress("reading", 0, 1, note="2 rows are left out")

    for as_json in (True, False):
        with speech(quiet=False, as_json=as_json):
            follow(task())
        said = capsys.readouterr().err.strip()
        assert (json.loads(said)["note"] if as_json else said) == "2 rows are left out"


def test_time_passes_also_where_no_step_comes(clock):
    """The line is written by a thread: waited for, not timed."""
    pace, written = Pace(clock), []
    with lines_of(Lines(pace, written.append)) as show:
        show(Progress("loading the model", 0, 1))
        clock.now = 30.0
        deadline = time.monotonic() + 60
        while not written and time.monotonic() < deadline:
            time.sleep(0.01)
    assert written == ["loading the model"]


def test_a_bar_says_how_far_the_whole_is(clock):
    """One task, whatever its phases are; what it calls the time is what it is."""
    pace, screen = Pace(clock), Console(file=io.StringIO(), force_terminal=True, width=120)
    with one_bar(screen, pace) as show:
        for seconds, step in ((0, Progress("reading the corpus", 0, 9)), (0, calibrating(0, 0.0))):
            clock.now = seconds
            pace.take(step)
            show(step)
        (bar,) = screen._live_stack
        text = rendered(screen, bar)
        assert "calibrating" in text
        assert "1 s elapsed" in text
        clock.now = 20
        pace.take(calibrating(614, 0.2, "layer 1"))
        show(calibrating(614, 0.2, "layer 1"))
        text = rendered(screen, bar)
        assert "calibrating layer 1" in text
        assert "20% 614/3,072 tokens 80 s left" in " ".join(text.split())


def rendered(screen, live):
    with screen.capture() as shown:
        screen.print(live.get_renderable())
    return shown.get()


def test_counts_and_times_can_be_read():
    step = Progress("reading weights", 3 << 19, 3 << 20, "bytes")
    assert count_of_step(step) == "1.5 MiB/3.0 MiB"
    assert count_of_step(Progress("", 1024, 65536, "tokens")) == "1,024/65,536 tokens"
    assert count_of_step(Progress("loading", 0, 0)) == ""


def test_the_end_says_what_was_expected_and_keeps_the_rates(clock, capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    pace, whole = Pace(clock), {"read": 20.0}
    pace.take(Progress("loading", 0, 1, whole=Whole(whole)))
    clock.now = 90
    pace.take(Progress("loading", 1, 1, whole=Whole(whole, whole)))
    conclude(Speech(), pace, 20.0)
    assert capsys.readouterr().err == "took 2 min; 20 s were expected\n"
    assert known_rates() == {"read": pytest.approx(4.5)}
    for spoken, expected in ((Speech(quiet=True), 20.0), (Speech(), None)):
        conclude(spoken, pace, expected)
    assert capsys.readouterr().err == ""


def test_an_interrupted_task_keeps_its_rates_for_the_one_that_resumes_it(
    clock, monkeypatch, tmp_path
):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))

    def task():
        yield calibrating(0, 0.0)
        clock.now = 50.0
        yield calibrating(1024, 1 / 3)
        signal.raise_signal(signal.SIGINT)
        clock.now = 100.0
        yield calibrating(2048, 2 / 3)

    with pytest.raises(SystemExit, match="130"):
        follow(task(), Pace(clock))
    assert known_rates() == {"multiply": pytest.approx(1.5)}  # 100 s for 66.7


def test_a_rate_of_work_whose_kind_is_not_stated_is_not_kept(clock, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))

    def task():
        for number in (1, 2, 3):
            clock.now = 50.0 * number
            yield Progress("writing answers", number, 9, "answers")
        signal.raise_signal(signal.SIGINT)
        yield Progress("writing answers", 4, 9, "answers")

    with pytest.raises(SystemExit, match="130"):
        follow(task(), Pace(clock))
    assert known_rates() == {}


def test_several_tasks_of_a_command_have_one_share():
    shares = []

    def task(kind, cost, steps):
        for step in range(steps + 1):
            yield Progress(
                kind, step, steps, whole=Whole({kind: cost}, {kind: cost * step / steps})
            )
            shares.append(course._pace.fraction)
        return kind

    # The second task turns out to cost half of what was expected, the third to be known.
    course = Course(Parts({"first": {"a": 6.0}, "second": {"b": 4.0}, "third": {"c": 2.0}}))
    with speech(quiet=True, as_json=False):
        assert course.follow("first", task("a", 6.0, 3)) == "a"
        assert shares == pytest.approx([0.0, 2 / 12, 4 / 12, 6 / 12])
        assert course.follow("second", task("b", 2.0, 2)) == "b"
        assert shares[4:] == pytest.approx([6 / 10, 7 / 10, 8 / 10])
        course.follow("third", (Progress("cached", 1, 1, whole=NOTHING) for _ in (1,)))
        assert course._pace.fraction == 1
        course.end()


def test_what_is_known_is_not_said_to_be_expected(clock, capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    expected = {"cached": 600.0, "resumed": 600.0, "run": 30.0}
    course = Course(Parts({name: {"read": cost} for name, cost in expected.items()}))
    course._pace = Pace(clock)

    def task(before, end):
        for done, at in ((before, clock.now), (30.0, end)):
            clock.now = at
            whole = Whole({"read": 30.0}, {"read": done}, {"read": before})
            yield Progress("reading", 0, 0, whole=whole)

    with speech(quiet=False, as_json=False):
        course.follow("cached", (Progress("cached", 1, 1, whole=NOTHING) for _ in (1,)))
        course.follow("resumed", task(30.0, 0))
        course.follow("run", task(0.0, 60))
        capsys.readouterr()
        course.end()
    assert capsys.readouterr().err == "took 60 s; 30 s were expected\n"
