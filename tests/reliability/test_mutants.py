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


def hunt(folder, tests):
    """The harness on a planted package."""
    (folder / "planted").mkdir()
    (folder / "planted" / "__init__.py").touch()
    (folder / "planted" / "sums.py").write_text(MODULE)
    (folder / "test_sums.py").write_text(tests)
    words = ["-m", "tools.reliability.mutants", "planted", "--tests", "test_sums.py"]
    return subprocess.run(
        [sys.executable, *words],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (folder, ROOT)))},
        capture_output=True,
        text=True,
        timeout=120,
    )


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


@on_linux
def test_children_that_hang_or_vanish_are_told_apart():
    asked = (
        "import os, time; from tools.reliability.mutants import ask_child as ask\n"
        "print(ask(lambda: 'fine', 60), ask(lambda: time.sleep(60), 0.1), sep='|')\n"
        "print(ask(lambda: os._exit(0), 60), ask(lambda: 1 / 0, 60), sep='|')"
    )
    said = subprocess.run(
        [sys.executable, "-c", asked], cwd=ROOT, capture_output=True, text=True, timeout=120
    )
    assert said.stdout.splitlines() == [
        "fine|too slow",
        "died: said nothing|died: ZeroDivisionError: division by zero",
    ]
