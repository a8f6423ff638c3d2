"""The harness of `python -m tools.reliability.mutants`, on a module whose mutants are known."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tools.reliability.operators import read_module

ROOT = Path(__file__).parents[2]
on_linux = pytest.mark.skipif(sys.platform != "linux", reason="waits for processes as Linux does")

MODULE = '''"""Words are left alone."""
LIMIT = 10


def capped(number: int) -> int:
    if number > LIMIT:
        return LIMIT
    return number


def twice(number: int) -> int:
    return number * 2
'''
# Sees neither a limit of another value nor what becomes of the limit itself.
TESTS = """
from planted import sums

def test_capped():
    assert sums.capped(3) == 3
    assert sums.capped(30) == sums.LIMIT
"""


PACKAGE = """from planted.sums import LIMIT, capped

MOST = LIMIT + 1


def least():
    return MOST
"""
TESTS_OF_PACKAGE = """
import planted
from planted import sums

def test_what_runs_at_import():
    assert planted.capped(30) == sums.LIMIT == 10
    assert planted.least() == 11
"""


def run(folder, *words):
    paths = os.pathsep.join(map(str, (folder, ROOT)))
    return subprocess.run(
        [sys.executable, *words],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        timeout=120,
    )


def hunt(folder, tests, package=""):
    """The harness on a planted package."""
    (folder / "planted").mkdir()
    (folder / "planted" / "__init__.py").write_text(package)
    (folder / "planted" / "sums.py").write_text(MODULE)
    (folder / "test_sums.py").write_text(tests)
    return run(folder, "-m", "tools.reliability.mutants", "planted", "--tests", "test_sums.py")


@pytest.mark.slow
@on_linux
def test_planted_mutants_die_live_or_are_not_reached(tmp_path):
    done = hunt(tmp_path, TESTS)
    assert done.returncode == 0, done.stdout + done.stderr
    *_, names, figures = (line.split() for line in done.stdout.splitlines())
    # Killed: LIMIT = None, `<` and `True` for `>`, both results. Not reached: all of `twice`.
    wanted = {"tried": "12", "killed": "5", "too_slow": "0", "survived": "3", "not_reached": "4"}
    assert dict(zip(names, figures, strict=True)) == wanted
    lived = {line for line in done.stdout.splitlines() if "(1 of 1 tests)" in line}
    assert lived == {
        "planted/sums.py:2 : 10  ->  11 (1 of 1 tests)",
        "planted/sums.py:2 : 10  ->  9 (1 of 1 tests)",
        "planted/sums.py:6 capped: number > LIMIT  ->  number >= LIMIT (1 of 1 tests)",
    }


@on_linux
@pytest.mark.slow
def test_a_package_that_imports_its_modules_is_changed_as_well(tmp_path):
    done = hunt(tmp_path, TESTS_OF_PACKAGE, PACKAGE)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = {row[0]: row[1:] for row in (line.split() for line in done.stdout.splitlines()) if row}
    # Of the package: MOST = None, LIMIT - 1, 1 as 2 and as 0, and None for the result.
    assert rows["planted/__init__.py"] == ["5", "5", "0", "0", "0"]
    # LIMIT = None, 11 and 9, `<` for `>` and None for the first result are seen, `>=` and `True`
    # are not. The second result and all of `twice` are not reached.
    assert rows["planted/sums.py"] == ["12", "5", "0", "2", "5"]


@pytest.mark.slow
@on_linux
def test_a_test_that_fails_without_any_change_ends_the_hunt(tmp_path):
    # Passes once, as when its lines are noted, and then no more.
    mark = tmp_path / "mark"
    once = f"    from pathlib import Path\n    Path({str(mark)!r}).touch(exist_ok=False)\n"
    done = hunt(tmp_path, TESTS + once)
    assert done.returncode
    assert "not changed, is killed by" in done.stdout + done.stderr


@on_linux
def test_children_that_hang_or_vanish_are_told_apart(tmp_path):
    said = run(
        tmp_path,
        "-c",
        "import os, time; from tools.reliability.mutants import ask_child as ask\n"
        "print(ask(lambda: 'fine', 60), ask(lambda: time.sleep(60), 0.1), sep='|')\n"
        "print(ask(lambda: os._exit(0), 60), ask(lambda: 1 / 0, 60), sep='|')",
    )
    assert said.stdout.splitlines() == [
        "fine|too slow",
        "died: said nothing|died: ZeroDivisionError: division by zero",
    ]


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("a < b", {"a <= b", "a > b"}),
        ("a and b", {"a or b", "a", "b"}),
        ("f(a, b, key=c)", {"f(b, a, key=c)", "f(a, b)"}),
        ("a[1:]", {"a[:]", "a[2:]", "a[0:]"}),
        ("a if b else c", {"c if b else a"}),
        ("min(a, 7)", {"max(a, 7)", "min(a, 8)", "min(a, 6)"}),
        ("zip(a, a, strict=True)", set()),
        ("f'words {a + 1}'", {"f'words {a - 1}'", "f'words {a + 2}'", "f'words {a + 0}'"}),
        ("'some words'", set()),
        ("'key'", {"'keyXX'"}),
    ],
)
def test_changes_of_an_expression(text, wanted):
    module = read_module("text", f"result = {text}")
    changed = set()
    for mutant in module.mutants:
        with mutant.applied():
            changed.add(module.text())
    assert changed == {f"result = {each}" for each in wanted | {"None"}}
    assert module.text() == f"result = {text}"
