"""Mutants: the program is changed at one place at a time, and a test must fail.

`python -m tools.reliability.mutants pruning/surgery --seed 7 --most 300` prints the mutants that
lived and a table. See `tools.reliability.operators` for what is changed.

One session of pytest collects the tests and runs none of them: all runs in children forked from
it, which have everything imported. First each test runs once, alone, and the lines that it reaches
are noted. Then each mutant meets the tests that reach its lines, until one fails: first those that
killed others of the module, then those named after it, then the shortest of each file. Most mutants
are put in place as the code of one function; a change of what runs when a module is imported has
the child reimport the program.
"""

import argparse
import contextlib
import importlib
import importlib.util
import inspect
import json
import os
import resource
import select
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, SourceFileLoader
from itertools import groupby, pairwise
from pathlib import Path
from random import Random
from types import CodeType, FrameType, FunctionType
from typing import Any

import pandas as pd
import pytest
from _pytest.runner import runtestprotocol

from tools.reliability.operators import Module, Mutant, read_module

_TEST_SECONDS = 20.0  # a test that takes longer, alone, is left out
_MOST_BYTES = 1 << 28  # of a file that a mutant writes
_MOST_MEMORY = 8 << 30
TOO_SLOW, DIED, IMPORT = "too slow", "died", "import"  # ends of a mutant besides a test's failure
_QUIET = ("-q", "-s", "-p", "no:cacheprovider", "--no-header", "--no-summary")

Reached = Mapping[str, frozenset[int]]  # file -> lines


@dataclass(frozen=True)
class Test:
    """A test as it ran once, alone.

    Args:
        item: of pytest.
        seconds: that it took, with its fixtures and with the tracing.
        reached: lines of the modules to change that ran, in whatever thread.
    """

    item: pytest.Item
    seconds: float
    reached: Reached


@dataclass(frozen=True)
class Outcome:
    """What became of a mutant.

    Args:
        module: that it belongs to.
        mutant: the change.
        tests: how many reach it.
        killer: the test that failed, or how else it ended; empty for a mutant that lived.
    """

    module: Module
    mutant: Mutant
    tests: int
    killer: str

    def __str__(self) -> str:
        place = f"{os.path.relpath(self.module.file)}:{self.mutant.lines[0]}"
        return f"{place} {self.mutant.function}: {self.mutant}"


def ask_child(work: Callable[[], str], limit: float) -> str:
    """What a function says in a forked child with folders of its own, or how the child ended."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        answer = Path(folder) / "answer"
        sys.stdout.flush()  # or the child would say it too
        child = os.fork()
        if not child:
            _live(work, answer)
        handle = os.pidfd_open(child)
        is_over = bool(select.select([handle], [], [], limit)[0])
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)  # and what it may have started
        os.waitpid(child, 0)
        os.close(handle)
        if not is_over:
            return TOO_SLOW
        if answer.exists():
            return answer.read_text()
        said = answer.with_name("said").read_text(errors="replace").splitlines()
        return f"{DIED}: {said[-1][:200] if said else 'said nothing'}"


def _live(work: Callable[[], str], answer: Path) -> None:
    """The child's life; it does not return."""
    try:
        os.setsid()
        said = os.open(answer.with_name("said"), os.O_RDWR | os.O_CREAT, 0o600)
        for standard in range(3):
            os.dup2(said, standard)
        resource.setrlimit(resource.RLIMIT_FSIZE, (_MOST_BYTES, _MOST_BYTES))
        resource.setrlimit(resource.RLIMIT_DATA, (_MOST_MEMORY, _MOST_MEMORY))
        folder = str(answer.parent)
        os.environ |= {"TMPDIR": folder, "PYTEST_DEBUG_TEMPROOT": folder}
        tempfile.tempdir = None
        answer.write_text(work())
    except BaseException:  # noqa: BLE001
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        os._exit(0)


def _first_failure(items: Sequence[pytest.Item]) -> str:
    """Name of the first of some tests that fails; empty if none does."""
    for item, following in pairwise([*items, None]):
        assert item is not None
        reports = runtestprotocol(item, log=False, nextitem=following)
        if any(report.failed for report in reports):
            return item.nodeid
    return ""


def _recorded(item: pytest.Item, files: frozenset[str]) -> str:
    """JSON of what a test reaches; runs in a child."""
    reached: dict[str, set[int]] = {file: set() for file in files}

    def on_line(frame: FrameType, event: str, _arg: object) -> Any:
        if event == "line":
            reached[frame.f_code.co_filename].add(frame.f_lineno)
        return on_line

    def on_call(frame: FrameType, _event: str, _arg: object) -> Any:
        return on_line if frame.f_code.co_filename in files else None

    began = time.monotonic()
    threading.settrace(on_call)
    sys.settrace(on_call)
    failed = _first_failure([item])
    sys.settrace(None)
    seconds = time.monotonic() - began
    lines = {file: sorted(found) for file, found in reached.items() if found}
    return json.dumps({"failed": failed, "seconds": seconds, "reached": lines})


def record(items: Iterable[pytest.Item], files: frozenset[str]) -> Iterator[Test]:
    """Run each test alone; those that pass and reach something are the result."""
    for item in items:
        answer = ask_child(partial(_recorded, item, files), _TEST_SECONDS)
        raw: dict[str, Any] = {"failed": answer}
        if answer.startswith("{"):
            raw = json.loads(answer)
        if raw["failed"]:
            print(f"left out: {item.nodeid} ({answer[:200]})", file=sys.stderr)
        elif raw["reached"]:
            reached = {file: frozenset(lines) for file, lines in raw["reached"].items()}
            yield Test(item, raw["seconds"], reached)


def tests_of(mutant: Mutant, file: str, tests: Sequence[Test]) -> list[Test]:
    """Tests that reach a mutant: of each test file the shortest, then of each the next, and so on.

    What runs at import is reached by whatever reaches the module.
    """
    first, last = mutant.lines
    meeting = [
        test
        for test in tests
        if any(first <= line <= last or not mutant.function for line in test.reached.get(file, ()))
    ]
    by_file = groupby(
        sorted(meeting, key=lambda test: (str(test.item.path), test.seconds)),
        key=lambda test: test.item.path,
    )
    ranked = [(rank, test) for _, group in by_file for rank, test in enumerate(group)]
    return [test for _, test in sorted(ranked, key=lambda pair: (pair[0], pair[1].seconds))]


def _affordable(tests: Sequence[Test], seconds: float) -> list[Test]:
    """The first of some tests, as many as the time allows, but one at least."""
    chosen: list[Test] = []
    for test in tests:
        if chosen and test.seconds > seconds:
            break
        chosen.append(test)
        seconds -= test.seconds
    return chosen


def _code_of(code: CodeType, function: str) -> CodeType:
    """The code of a function within that of its module."""
    inside = [code]
    for each in inside:
        if each.co_qualname == function:
            return each
        inside.extend(const for const in each.co_consts if isinstance(const, CodeType))
    raise LookupError(function)


def _dotted(file: str) -> str:
    parts = Path(os.path.relpath(file)).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _live_function(file: str, function: str) -> FunctionType | None:
    """A function of an imported module, without what wraps it; None where that is not known."""
    module = importlib.import_module(_dotted(file))  # some are only imported by what uses them
    assert module.__file__ == file, f"{module.__file__} runs instead of {file}"
    found: Any = module
    for name in function.split("."):
        found = vars(found)[name]
    for wrapper in ("__func__", "fget", "func"):
        found = getattr(found, wrapper, found)
    found = inspect.unwrap(found)
    return found if isinstance(found, FunctionType) else None


def run_in_place(code: CodeType, file: str, function: str, items: Sequence[pytest.Item]) -> str:
    """Run tests with the changed code of one function; runs in a child."""
    live = _live_function(file, function)
    assert live is not None
    live.__code__ = _code_of(code, function)
    return _first_failure(items)


class _Changed(SourceFileLoader, MetaPathFinder):
    """Finds one module, with changed code, whoever imports it first; it may be its package."""

    def __init__(self, name: str, file: str, code: CodeType) -> None:
        super().__init__(name, file)
        self.code = code

    def find_spec(
        self, fullname: str, _path: object = None, _target: object = None
    ) -> ModuleSpec | None:
        if fullname != self.name:
            return None
        return importlib.util.spec_from_file_location(fullname, self.path, loader=self)

    def get_code(self, _fullname: str) -> CodeType:
        return self.code


def run_anew(code: CodeType, file: str, items: Sequence[pytest.Item]) -> str:
    """Run tests with the program reimported, one module from changed code; runs in a child."""
    ours = {path.stem for folder in (".", "tests") for path in Path(folder).glob("*")}
    for name in [name for name in sys.modules if name.partition(".")[0] in ours]:
        del sys.modules[name]
    sys.meta_path.insert(0, _Changed(_dotted(file), file, code))
    try:
        importlib.import_module(_dotted(file))
    except Exception:  # noqa: BLE001
        return IMPORT
    ended = pytest.main([*_QUIET, "-x", *(item.nodeid for item in items)])
    return "" if ended is pytest.ExitCode.OK else f"some test ({ended!s})"


def attempt(module: Module, mutant: Mutant | None, place: str, tests: Sequence[Test]) -> str:
    """What kills a mutant, empty for nothing.

    Args:
        module: that it belongs to.
        mutant: the change; None for none at all, as a control.
        place: the function that changes; empty for what runs at import.
        tests: to be run.
    """
    code, items = module.code(mutant), [test.item for test in tests]
    limit = 20 + 5 * sum(test.seconds for test in tests)
    if place and _live_function(module.file, place):
        return ask_child(lambda: run_in_place(code, module.file, place, items), limit)
    return ask_child(lambda: run_anew(code, module.file, items), limit + 20)


def check_controls(modules: Iterable[Module], tests: Sequence[Test]) -> None:
    """Modules that are put in place unchanged must live, or the figures mean nothing."""
    for module in modules:
        for place in {mutant.function for mutant in module.mutants}:
            mutant = next(each for each in module.mutants if each.function == place)
            chosen = _affordable(tests_of(mutant, module.file, tests), 0)
            killer = attempt(module, None, place, chosen) if chosen else ""
            if killer:
                raise SystemExit(f"{module.file} {place}, not changed, is killed by {killer}")


@dataclass
class Hunt:
    """A plugin of pytest that hunts mutants instead of running the tests.

    Args:
        modules: to change.
        seed: of the choice.
        most: mutants to try.
        seconds: for the tests of one mutant.
    """

    modules: Sequence[Module]
    seed: int
    most: int
    seconds: float
    outcomes: list[Outcome] = field(default_factory=list)
    _kills: Counter[tuple[str, str]] = field(default_factory=Counter)  # by module and test

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        if session.testsfailed:
            raise session.Interrupted("some tests cannot be collected")
        files = frozenset(module.file for module in self.modules)
        tests = list(record(session.items, files))
        print(f"{len(tests)} of {len(session.items)} tests reach the code", file=sys.stderr)
        check_controls(self.modules, tests)
        every = [(module, mutant) for module in self.modules for mutant in module.mutants]
        chosen = Random(self.seed).sample(every, min(self.most, len(every)))  # noqa: S311
        # Ctrl-C ends it early, with the figures so far.
        with contextlib.suppress(KeyboardInterrupt):
            for module, mutant in chosen:
                self._try(module, mutant, tests)
        return True

    def _promise(self, module: Module, test: Test) -> tuple[int, bool]:
        """What has killed mutants of a module, or is named after it, may well kill the next."""
        name = test.item.nodeid
        return self._kills[module.file, name], Path(module.file).stem in name

    def _try(self, module: Module, mutant: Mutant, tests: Sequence[Test]) -> None:
        meeting = tests_of(mutant, module.file, tests)
        meeting.sort(key=lambda test: self._promise(module, test), reverse=True)
        chosen = _affordable(meeting, self.seconds)
        killer = attempt(module, mutant, mutant.function, chosen) if chosen else ""
        outcome = Outcome(module, mutant, len(meeting), killer)
        self.outcomes.append(outcome)
        self._kills[module.file, killer] += 1
        if not killer:
            print(f"{outcome} ({len(chosen)} of {len(meeting)} tests)", flush=True)


def table_of(outcomes: Iterable[Outcome]) -> pd.DataFrame:
    """Table `module, tried, killed, too_slow, survived, not_reached`; one row per module."""
    rows = [
        {
            "module": os.path.relpath(outcome.module.file),
            "tried": 1,
            "killed": outcome.killer not in ("", TOO_SLOW),
            "too_slow": outcome.killer == TOO_SLOW,
            "survived": not outcome.killer and outcome.tests > 0,
            "not_reached": not outcome.tests,
        }
        for outcome in outcomes
    ]
    return pd.DataFrame(rows).groupby("module", as_index=False).sum()


def tests_naming(paths: Sequence[Path]) -> list[str]:
    """Test files that name the package of some modules; not those that start many processes."""
    names = {_dotted(str(path.parent if path.suffix else path)) for path in paths}
    found = sorted(Path("tests").rglob("test_*.py"))
    left_out = ("reliability", "e2e", "benchmarks")
    return [
        str(path)
        for path in found
        if path.parent.name not in left_out and any(name in path.read_text() for name in names)
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("path", nargs="+", type=Path, help="a module, or a folder of modules")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--most", type=int, default=300, help="mutants to try")
    parser.add_argument("--seconds", type=float, default=15.0, help="of tests for one mutant")
    parser.add_argument("--tests", nargs="+", help="files; by default those naming the package")
    chosen = parser.parse_args()
    os.environ |= {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    os.environ.pop("PYTEST_ADDOPTS", None)  # options of whoever runs this, not of these tests
    files = [f for path in chosen.path for f in ([path] if path.suffix else path.rglob("*.py"))]
    modules = [read_module(str(file.resolve()), file.read_text()) for file in sorted(files)]
    hunt = Hunt(
        [each for each in modules if each.mutants], chosen.seed, chosen.most, chosen.seconds
    )
    ended = pytest.main([*_QUIET, *(chosen.tests or tests_naming(chosen.path))], plugins=[hunt])
    if not hunt.outcomes:
        raise SystemExit(f"no mutant was tried: {ended}")
    table = table_of(hunt.outcomes)
    print(table.to_string(index=False))
    print(table.drop(columns="module").sum().to_frame().T.to_string(index=False))


if __name__ == "__main__":
    main()
