"""The demo's corpora: code, prose and math, read or generated where the program runs.

Code and prose come from the Python installation, so they differ between versions; math is
generated and the same everywhere. Nothing is copied into the repository.
"""

import ast
import inspect
import sysconfig
import warnings
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from random import Random

# Parts of the standard library that some installations lack or that are unsuitable as text.
_SKIPPED_PACKAGES = frozenset(
    {"site-packages", "dist-packages", "test", "tests", "idlelib", "turtledemo", "lib2to3"}
    | {"ensurepip", "pydoc_data", "encodings", "__pycache__", "config"}
)
_HELD_OUT_EVERY = 12
_MIN_CHARS = 200


@dataclass(frozen=True, slots=True)
class DemoText:
    """One document; `response` is empty unless it is a prompt with a worked answer."""

    name: str
    prompt: str
    response: str = ""


def _modules() -> Iterator[tuple[str, ast.Module]]:
    root = Path(sysconfig.get_paths()["stdlib"])
    for path in sorted(root.rglob("*.py")):
        parts = path.relative_to(root).parts
        if any(part in _SKIPPED_PACKAGES or part.startswith("config-") for part in parts):
            continue
        with warnings.catch_warnings():
            # Old modules may have invalid escapes.
            warnings.simplefilter("ignore")
            try:
                yield str(path.relative_to(root)), ast.parse(path.read_bytes())
            except SyntaxError:
                continue  # a template, or a file for another Python version


# Fields of statements that hold statements, in the order of every node that has them.
_BLOCKS = ("body", "handlers", "cases", "orelse", "finalbody")


def _docstring_owners(tree: ast.Module) -> Iterator[ast.Module | ast.ClassDef | ast.FunctionDef]:
    """In the order of `ast.walk`, which visits expressions too: ten times as many nodes."""
    waiting: deque[ast.AST] = deque([tree])
    while waiting:
        node = waiting.popleft()
        for block in _BLOCKS:
            waiting.extend(getattr(node, block, ()))
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
            yield node


def code_texts() -> Iterator[DemoText]:
    """Standard-library modules without docstrings and comments, one document each."""
    for name, tree in _modules():
        for owner in _docstring_owners(tree):
            if ast.get_docstring(owner, clean=False) is not None:
                owner.body = owner.body[1:] or [ast.Pass()]
        source = ast.unparse(tree)
        if len(source) >= _MIN_CHARS:
            yield DemoText(name, source)


def prose_texts() -> Iterator[DemoText]:
    """The language reference shipped for `help()`, and the docstrings of each module."""
    topics: dict[str, str] = import_module("pydoc_data.topics").topics
    for name in sorted(topics):
        if len(topics[name]) >= _MIN_CHARS:
            yield DemoText(f"topic {name}", topics[name])
    for name, tree in _modules():
        docstrings = [ast.get_docstring(owner) or "" for owner in _docstring_owners(tree)]
        text = "\n\n".join(inspect.cleandoc(part) for part in docstrings if len(part) >= 60)
        if len(text) >= _MIN_CHARS:
            yield DemoText(name, text)


_PEOPLE = ("Ada", "Ben", "Chen", "Dora", "Emil", "Fatima", "Goran", "Hana", "Ivo", "Jana")
_THINGS = ("apples", "books", "coins", "pencils", "tickets", "stamps", "bottles", "tiles")


class _Draw:
    """Integers from `Random.random()`, the only method whose sequence Python guarantees."""

    def __init__(self, seed: int) -> None:
        self._random = Random(seed)  # noqa: S311  (text, not secrets)

    def integer(self, low: int, high: int) -> int:
        return low + int(self._random.random() * (high - low + 1))

    def pick(self, options: tuple[str, ...]) -> str:
        return options[self.integer(0, len(options) - 1)]


def _shopping(draw: _Draw) -> tuple[str, str]:
    count, price, paid = draw.integer(2, 19), draw.integer(2, 12), draw.integer(1, 60)
    total, who, what = count * price, draw.pick(_PEOPLE), draw.pick(_THINGS)
    return (
        f"{who} buys {count} {what} at {price} dollars each and pays with {total + paid} dollars. "
        f"How much change does {who} get?",
        f"The {what} cost {count} * {price} = {total} dollars. "
        f"The change is {total + paid} - {total} = {paid} dollars. The answer is {paid}.",
    )


def _sharing(draw: _Draw) -> tuple[str, str]:
    friends, each, rest = draw.integer(2, 9), draw.integer(3, 24), draw.integer(0, 1)
    total, who, what = friends * each + rest, draw.pick(_PEOPLE), draw.pick(_THINGS)
    return (
        f"{who} shares {total} {what} equally among {friends} friends. "
        f"How many does each friend get, and how many are left?",
        f"{friends} * {each} = {friends * each}, and {total} - {friends * each} = {rest}. "
        f"Each friend gets {each} and {rest} are left. The answer is {each}.",
    )


def _travel(draw: _Draw) -> tuple[str, str]:
    speed, first, second = draw.integer(3, 12) * 10, draw.integer(1, 6), draw.integer(1, 6)
    hours = first + second
    return (
        f"A train runs at {speed} km per hour for {first} hours, rests, and runs {second} hours "
        f"more at the same speed. How far does it go?",
        f"It runs {first} + {second} = {hours} hours. "
        f"The distance is {speed} * {hours} = {speed * hours} km. The answer is {speed * hours}.",
    )


def _rectangle(draw: _Draw) -> tuple[str, str]:
    width, height = draw.integer(3, 25), draw.integer(3, 25)
    area, edge = width * height, 2 * (width + height)
    return (
        f"A garden is {width} m wide and {height} m long. What are its area and its perimeter?",
        f"The area is {width} * {height} = {area} square meters. The perimeter is "
        f"2 * ({width} + {height}) = 2 * {width + height} = {edge} m. The answer is {area}.",
    )


def _equation(draw: _Draw) -> tuple[str, str]:
    factor, shift, root = draw.integer(2, 12), draw.integer(1, 40), draw.integer(1, 20)
    right = factor * root + shift
    return (
        f"Solve for x: {factor} * x + {shift} = {right}.",
        f"Subtract {shift}: {factor} * x = {right} - {shift} = {right - shift}. "
        f"Divide by {factor}: x = {right - shift} / {factor} = {root}. The answer is {root}.",
    )


def _saving(draw: _Draw) -> tuple[str, str]:
    start, week = draw.integer(5, 80), draw.integer(2, 15)
    weeks, spent = draw.integer(2, 12), draw.integer(1, 20)
    who, saved = draw.pick(_PEOPLE), week * weeks
    total = start + saved
    return (
        f"{who} has {start + spent} dollars, spends {spent}, and then saves {week} dollars a week "
        f"for {weeks} weeks. How much does {who} have then?",
        f"After spending, {start + spent} - {spent} = {start}. Saving gives {week} * {weeks} = "
        f"{saved}. Together {start} + {saved} = {total} dollars. The answer is {total}.",
    )


def _percent(draw: _Draw) -> tuple[str, str]:
    share, base = draw.integer(1, 9) * 10, draw.integer(2, 60) * 10
    part = share * base // 100
    return (
        f"A shop has {base} {draw.pick(_THINGS)} and sells {share} percent of them. "
        f"How many does it sell, and how many remain?",
        f"{share} percent of {base} is {share} * {base} / 100 = {part}. "
        f"There remain {base} - {part} = {base - part}. The answer is {part}.",
    )


_PROBLEMS = (_shopping, _sharing, _travel, _rectangle, _equation, _saving, _percent)


def math_texts() -> Iterator[DemoText]:
    """Generated word problems with worked answers; the same on every Python."""
    for index in range(12_000):
        draw = _Draw(index)
        prompt, response = _PROBLEMS[draw.integer(0, len(_PROBLEMS) - 1)](draw)
        yield DemoText(f"problem {index}", prompt, response)


TEXTS = {"demo-code": code_texts, "demo-prose": prose_texts, "demo-math": math_texts}
# Corpus -> the check of its answers, see `analysis.corpora.checks`.
TEXT_CHECKS = {"demo-math": "number"}


@cache
def _whole(corpus: str) -> tuple[DemoText, ...]:
    """All documents, held-out ones too, kept: 3 to 4 s of parsing for some megabytes of text."""
    return tuple(TEXTS[corpus]())


def demo_texts(corpus: str, *, held_out: bool = False) -> Iterator[DemoText]:
    """Documents of one demo corpus; every twelfth is held out from training and calibration.

    Held-out documents that also occur among the others are left out: word problems repeat.
    """
    prompts: set[str] = set()
    kept_back = []
    for index, text in enumerate(_whole(corpus)):
        if index % _HELD_OUT_EVERY == _HELD_OUT_EVERY - 1:
            kept_back.append(text)
        elif held_out:
            prompts.add(text.prompt)
        else:
            yield text
    if held_out:
        yield from (text for text in kept_back if text.prompt not in prompts)
