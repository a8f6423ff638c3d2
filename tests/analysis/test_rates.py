"""Estimates before a task begins: what it states, at the rates of the machine's last runs."""

import json
import subprocess
import sys

import pytest

from analysis.drain import drain
from analysis.machine.hardware import hardware
from analysis.pace import Pace
from analysis.progress import NOTHING, RATES, Progress, Whole, bytes_of, stated_whole
from analysis.stats import rates
from analysis.stats.rates import expected_seconds, keep_rates, known_rates, rates_file
from pruning.actions.expected import told


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def test_a_task_is_stopped_where_it_has_stated_its_work():
    whole, begun, ended = Whole({"read": 3.0}), [], []

    def task():
        try:
            yield Progress("reading the corpus", 0, 1)
            yield Progress("loading the model", 0, 1, whole=whole)
            begun.append(True)
        finally:
            ended.append(True)

    steps = []
    assert drain(stated_whole(task()), steps.append) is whole
    assert [step.phase for step in steps] == ["reading the corpus"]
    assert (begun, ended) == ([], [True])

    def known():
        yield Progress("cached", 1, 1, whole=NOTHING)

    assert drain(stated_whole(known())) is NOTHING


def test_rates_of_a_run_are_those_of_work_that_took_a_while():
    now = [0.0]
    pace = Pace(lambda: now[0])
    total = {"read": 2.0, "multiply": 20.0}
    pace.take(Progress("loading", 0, 1, whole=Whole(total)))
    now[0] = 3.0  # 2 of cost in 3 s: too short to tell
    pace.take(Progress("loading", 1, 1, whole=Whole(total, {"read": 2.0})))
    now[0] = 63.0  # 20 of cost in 60 s
    pace.take(Progress("running", 1, 1, whole=Whole(total, total)))
    assert pace.rates == {"multiply": pytest.approx(3.0)}


def test_an_estimate_is_what_is_left_at_the_last_rate_of_each_kind():
    whole = Whole({"read": 4.0, "multiply": 10.0}, {"multiply": 2.0}, {"multiply": 2.0})
    assert expected_seconds(whole) == 4.0 + 8.0  # as on the machine where costs were stated
    keep_rates({"multiply": 3.0, "hash": 0.5})
    keep_rates({"hash": 0.25})
    assert known_rates() == {"multiply": 3.0, "hash": 0.25}
    assert expected_seconds(whole) == 4.0 * 0.25 + 8.0 * 3.0  # other bytes tell of bytes
    assert expected_seconds(Whole({"compare": 2.0})) == 2.0 * 3.0  # and products of products
    # The median and not the mean: one slow kind says little of another. Of a repair's and of
    # writing none does.
    keep_rates({"check": 0.5, "sum": 400.0, "write": 900.0, "fit": 900.0, "gone": 900.0})
    assert expected_seconds(whole) == 4.0 * 0.5 + 8.0 * 3.0


def test_all_others_tell_of_a_kind_where_none_like_it_is_known():
    keep_rates({"multiply": 3.0, "compare": 5.0})
    assert expected_seconds(Whole({"read": 2.0})) == 2.0 * 4.0


def test_commands_that_end_at_once_all_keep_their_rates():
    kinds, line = list(RATES), "import sys; from analysis.stats.rates import keep_rates as keep; "
    line += "input(); [keep({kind: 2.0}) for kind in sys.argv[1:]]"
    pipes = {"stdin": subprocess.PIPE, "text": True}
    commands = [
        subprocess.Popen([sys.executable, "-c", line, *kinds[n::3]], **pipes) for n in range(3)
    ]
    for command in commands:
        command.stdin.write("\n")
        command.stdin.close()
    assert [command.wait(60) for command in commands] == [0, 0, 0]
    assert known_rates() == dict.fromkeys(kinds, 2.0)


def test_what_earlier_runs_did_is_neither_read_nor_expected():
    part = Whole({"read": 4.0, "multiply": 0.3}, {"read": 3.0}, {"read": 3.0})
    assert bytes_of(part) == RATES["read"]
    assert expected_seconds(part) == 1.0 + 0.3
    sums = 0.1 + 0.2  # not 0.3
    for known in (
        Whole({"multiply": 0.0, "read": 0.0}),
        Whole({"multiply": sums}, {"multiply": 0.3}, {"multiply": 0.3}),
    ):
        assert known.is_known and not part.is_known
        assert drain(stated_whole(iter_of(Progress("known", 0, 1, whole=known)))) is known
        assert told(known, 7).numbers == {"bytes": 0, "memory_bytes": 0, "seconds": 0}
        assert told(known, 7).sentence.startswith("all of it is known already")


def iter_of(*steps):
    """A task of these steps."""
    yield from steps


@pytest.mark.parametrize(
    "content", ["", "[1.0]", '{"read": "2"}', '{"read": NaN}', '{"read": -1.0}', '{"read": 1e300}']
)
def test_a_file_of_anything_else_has_no_rates(content):
    rates_file().parent.mkdir(parents=True)
    rates_file().write_text(content)
    assert known_rates() == {}
    keep_rates({"read": 2.0})
    assert json.loads(rates_file().read_text()) == {"read": 2.0}


def test_rates_in_other_units_are_not_taken_for_these(monkeypatch):
    keep_rates({"read": 2.0})
    assert known_rates() == {"read": 2.0}
    with monkeypatch.context() as changed:
        changed.setitem(RATES, "read", 2 * RATES["read"])
        assert known_rates() == {}
    assert known_rates() == {"read": 2.0}


def test_rates_are_of_one_hardware(monkeypatch):
    """Machines of a cluster share the home of a user."""
    keep_rates({"read": 2.0})
    assert known_rates() == {"read": 2.0}
    monkeypatch.setattr(rates, "hardware", lambda: ("another",))
    assert known_rates() == {}


def test_hardware_is_told_by_its_processor_cores_and_gpus(tmp_path):
    def machine(name, processors, gpus=()):
        kernel = tmp_path / name
        kernel.mkdir()
        lines = "".join(
            f"processor\t: {number}\nmodel name\t: {model}\ncpu MHz\t\t: {2000 + number}\n\n"
            for number, model in enumerate(processors)
        )
        (kernel / "cpuinfo").write_text(lines)
        for number, model in enumerate(gpus):
            folder = kernel / "driver/nvidia/gpus" / f"0000:0{number}:00.0"
            folder.mkdir(parents=True)
            (folder / "information").write_text(f"Model: \t\t {model}\nIRQ: {number}\n")
        return hardware(kernel)

    one, alike = machine("one", ["Fast 9"] * 4), machine("alike", ["Fast 9"] * 64)
    assert one == alike
    assert "Fast 9" in one
    assert machine("slow", ["Slow 1"] * 4) != one
    with_gpus = machine("gpus", ["Fast 9"], ["Large", "Large"])
    assert with_gpus == (*one, "Large", "Large")
    assert hardware(tmp_path / "none")[2] == one[2]
