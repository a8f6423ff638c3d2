"""Small Python functions: a filter, a map and a reduction of a list, in words and in code.

Held-out texts have combinations of the three that no other text has; a function is right if its
body, which `analysis.demo.interpreter` runs, computes what the docstring says.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from math import prod
from typing import Any

from analysis.demo.generate.draw import Draw, GeneratedText

_CASES = 6
_HELD_OUT_OF = 8  # every eighth combination, by its hash
_FUNCTIONS = 3  # of one text


@dataclass(frozen=True, slots=True)
class _Filter:
    """Which items count; `{x}` is the item, `{k}` a constant."""

    name: str
    words: str  # `{items}` is the noun
    code: str
    passes: Callable[[Any, Any], bool]
    constants: Sequence[Any] = (0,)


@dataclass(frozen=True, slots=True)
class _Map:
    """What becomes of an item; its result is a number or a word."""

    name: str
    words: str  # `{items}` are the items that count
    code: str
    value: Callable[[Any, Any], Any]
    constants: Sequence[Any] = (0,)
    gives_words: bool = False


@dataclass(frozen=True, slots=True)
class _Reduction:
    """What becomes of the values; `{inside}` is a comprehension's inside, `{value}` one value."""

    name: str
    words: str  # `{values}` are the values
    compute: Callable[[list[Any]], Any]
    short: str = ""  # an expression, or none
    start: str = ""  # a loop's variable before it, or none
    step: str = ""  # what the loop does
    end: str = ""  # what is returned after it
    of_words: bool | None = None  # only of words, only of numbers, or of both


@dataclass(frozen=True, slots=True)
class _Kind:
    """A kind of list, and what is done with it."""

    noun: str
    arguments: Sequence[str]
    variables: Sequence[str]
    filters: Sequence[_Filter]
    maps: Sequence[_Map]
    items: Callable[[Draw], list[Any]]


_SMALL = tuple(range(2, 13))
_LARGE = tuple(range(2, 21))
_LETTERS = tuple("abcdeilmnoprst")  # quoted in words as in code, so that both are one token

_NUMBER_FILTERS = (
    _Filter("all", "{items}", "", lambda x, k: True),
    _Filter("even", "even {items}", "{x} % 2 == 0", lambda x, k: x % 2 == 0),
    _Filter("odd", "odd {items}", "{x} % 2 == 1", lambda x, k: x % 2 == 1),
    _Filter("positive", "positive {items}", "{x} > 0", lambda x, k: x > 0),
    _Filter("negative", "negative {items}", "{x} < 0", lambda x, k: x < 0),
    _Filter("large", "{items} above {k}", "{x} > {k}", lambda x, k: x > k, _LARGE),
    _Filter("small", "{items} below {k}", "{x} < {k}", lambda x, k: x < k, _LARGE),
    _Filter("multiple", "multiples of {k}", "{x} % {k} == 0", lambda x, k: x % k == 0, _SMALL[1:]),
    _Filter("other", "{items} other than {k}", "{x} != {k}", lambda x, k: x != k, _LARGE),
)
_NUMBER_MAPS = (
    _Map("", "the {items}", "{x}", lambda x, k: x),
    _Map("squares", "the squares of the {items}", "{x} * {x}", lambda x, k: x * x),
    _Map("cubes", "the cubes of the {items}", "{x} * {x} * {x}", lambda x, k: x**3),
    _Map("times", "the {items}, each times {k}", "{x} * {k}", lambda x, k: x * k, _SMALL),
    _Map("plus", "the {items}, each plus {k}", "{x} + {k}", lambda x, k: x + k, _LARGE),
    _Map("minus", "the {items}, each minus {k}", "{x} - {k}", lambda x, k: x - k, _LARGE),
    _Map("opposites", "the opposites of the {items}", "-{x}", lambda x, k: -x),
    _Map("halves", "the halves of the {items}", "{x} // 2", lambda x, k: x // 2),
    _Map("remainders", "the {items} modulo {k}", "{x} % {k}", lambda x, k: x % k, _SMALL[1:]),
    _Map("sizes", "the absolute values of the {items}", "abs({x})", lambda x, k: abs(x)),
    _Map(
        "distances",
        "the distances of the {items} from {k}",
        "abs({x} - {k})",
        lambda x, k: abs(x - k),
        _LARGE,
    ),
)
_WORD_FILTERS = (
    _Filter("all", "{items}", "", lambda x, k: True),
    _Filter(
        "long", "{items} longer than {k}", "len({x}) > {k}", lambda x, k: len(x) > k, (3, 4, 5)
    ),
    _Filter("short", "{items} shorter than {k}", "len({x}) < {k}", lambda x, k: len(x) < k, (5, 6)),
    _Filter(
        "starting",
        '{items} starting with "{k}"',
        '{x}.startswith("{k}")',
        lambda x, k: x.startswith(k),
        _LETTERS,
    ),
    _Filter(
        "ending",
        '{items} ending with "{k}"',
        '{x}.endswith("{k}")',
        lambda x, k: x.endswith(k),
        _LETTERS,
    ),
    _Filter("with", '{items} that have "{k}"', '"{k}" in {x}', lambda x, k: k in x, _LETTERS),
    _Filter(
        "without", '{items} that lack "{k}"', '"{k}" not in {x}', lambda x, k: k not in x, _LETTERS
    ),
)
_WORD_MAPS = (
    _Map("", "the {items}", "{x}", lambda x, k: x, gives_words=True),
    _Map("lengths", "the lengths of the {items}", "len({x})", lambda x, k: len(x)),
    _Map(
        "upper",
        "the {items} in upper case",
        "{x}.upper()",
        lambda x, k: x.upper(),
        gives_words=True,
    ),
    _Map(
        "initials",
        "the first letters of the {items}",
        "{x}[0]",
        lambda x, k: x[0],
        gives_words=True,
    ),
    _Map(
        "ends", "the last letters of the {items}", "{x}[-1]", lambda x, k: x[-1], gives_words=True
    ),
    _Map("reversed", "the {items} backwards", "{x}[::-1]", lambda x, k: x[::-1], gives_words=True),
    _Map("doubled", "the {items}, each twice", "{x} + {x}", lambda x, k: x + x, gives_words=True),
    _Map(
        "counts",
        'how often "{k}" is in the {items}',
        '{x}.count("{k}")',
        lambda x, k: x.count(k),
        _LETTERS,
    ),
)
_REDUCTIONS = (
    _Reduction(
        "list",
        "Return {values}.",
        list,
        "[{inside}]",
        "result = []",
        "result.append({value})",
        "result",
    ),
    _Reduction(
        "sum",
        "Return the sum of {values}.",
        sum,
        "sum({inside})",
        "total = 0",
        "total += {value}",
        "total",
        of_words=False,
    ),
    _Reduction(
        "product",
        "Return the product of {values}.",
        prod,
        start="result = 1",
        step="result *= {value}",
        end="result",
        of_words=False,
    ),
    _Reduction(
        "largest",
        "Return the largest of {values}, or 0.",
        lambda values: max(values, default=0),
        "max(({inside}), default=0)",
        of_words=False,
    ),
    _Reduction(
        "smallest",
        "Return the smallest of {values}, or 0.",
        lambda values: min(values, default=0),
        "min(({inside}), default=0)",
        of_words=False,
    ),
    _Reduction("sorted", "Return {values} in order.", sorted, "sorted({inside})"),
    _Reduction(
        "falling",
        "Return {values} in falling order.",
        lambda values: sorted(values, reverse=True),
        "sorted(({inside}), reverse=True)",
    ),
    _Reduction(
        "first",
        "Return the first of {values}, or None.",
        lambda values: next(iter(values), None),
        step="return {value}",
        end="None",
    ),
    _Reduction(
        "last",
        "Return the last of {values}, or None.",
        lambda values: values[-1] if values else None,
        start="result = None",
        step="result = {value}",
        end="result",
    ),
    _Reduction(
        "different",
        "Return how many different values {values} have.",
        lambda values: len(set(values)),
        "len(set({inside}))",
    ),
    _Reduction(
        "joined",
        "Return {values}, joined by spaces.",
        " ".join,
        '" ".join({inside})',
        of_words=True,
    ),
    _Reduction(
        "text",
        "Return {values} as one text.",
        "".join,
        '"".join({inside})',
        'result = ""',
        "result += {value}",
        "result",
        of_words=True,
    ),
)
_WORDS = (
    *("apple", "pear", "plum", "melon", "stone", "river", "cloud", "lantern", "copper", "silver"),
    *("ocean", "island", "train", "bridge", "corner", "mirror", "paper", "pencil", "song", "dance"),
    *("lion", "otter", "raven", "camel", "salmon", "beetle", "rose", "maple", "clover", "root"),
)


def _numbers(draw: Draw) -> list[int]:
    return [draw.integer(-15, 25) for _ in range(draw.integer(3, 8))]


def _words(draw: Draw) -> list[str]:
    return [draw.pick(_WORDS) for _ in range(draw.integer(3, 8))]


_KINDS = (
    _Kind(
        "numbers",
        ("numbers", "values", "data", "scores", "items"),
        ("n", "x", "v", "number", "value"),
        _NUMBER_FILTERS,
        _NUMBER_MAPS,
        _numbers,
    ),
    _Kind(
        "words",
        ("words", "names", "lines", "texts", "items"),
        ("w", "s", "word", "name", "text"),
        _WORD_FILTERS,
        _WORD_MAPS,
        _words,
    ),
)


@dataclass(frozen=True, slots=True)
class _Combination:
    """What a function does, but for its constants and names."""

    kind: _Kind
    filter: _Filter
    map: _Map
    reduction: _Reduction

    @property
    def name(self) -> str:
        parts = (self.reduction.name, self.map.name, self.filter.name)
        return "_".join(part for part in parts if part)

    @property
    def is_held_out(self) -> bool:
        digest = sha256(f"{self.kind.noun} {self.name}".encode()).digest()
        return digest[0] % _HELD_OUT_OF == 0


@cache
def _combinations(*, held_out: bool) -> tuple[_Combination, ...]:
    combinations = (
        _Combination(kind, filter_, change, reduction)
        for kind in _KINDS
        for filter_ in kind.filters
        for change in kind.maps
        for reduction in _REDUCTIONS
        if reduction.of_words in (None, kind.noun == "words" and change.gives_words)
    )
    return tuple(combination for combination in combinations if combination.is_held_out == held_out)


@dataclass(frozen=True, slots=True)
class _Function:
    head: str
    body: str
    cases: tuple[tuple[list[Any], Any], ...]  # argument, and what the docstring says of it

    @property
    def text(self) -> str:
        return f"{self.head}\n{self.body}"


def _telling(draw: Draw, kind: _Kind, passes: Callable[[Any], bool]) -> list[Any]:
    """A list of which at least two items pass, if a few tries give one."""
    items = kind.items(draw)
    for _ in range(9):
        if sum(map(passes, items)) > 1:
            break
        items = kind.items(draw)
    return items


def _function(draw: Draw, combination: _Combination) -> _Function:
    kind, which, change, reduction = (
        combination.kind,
        combination.filter,
        combination.map,
        combination.reduction,
    )
    argument, x = draw.pick(kind.arguments), draw.pick(kind.variables)
    limit, amount = draw.pick(which.constants), draw.pick(change.constants)
    items = which.words.format(items=kind.noun, k=limit)
    values = change.words.format(items=items, k=amount)
    head = f'def {combination.name}({argument}):\n    """{reduction.words.format(values=values)}"""'
    condition, value = which.code.format(x=x, k=limit), change.code.format(x=x, k=amount)
    if reduction.short and (not reduction.step or draw.integer(0, 1)):
        inside = f"{value} for {x} in {argument}" + (f" if {condition}" if condition else "")
        body = f"    return {reduction.short.format(inside=inside)}"
    else:
        lines = [f"    {reduction.start}"] if reduction.start else []
        lines.append(f"    for {x} in {argument}:")
        if condition:
            lines.append(f"        if {condition}:")
        deep = "            " if condition else "        "
        lines += [deep + reduction.step.format(value=value), f"    return {reduction.end}"]
        body = "\n".join(lines)

    def expected(given: list[Any]) -> Any:
        chosen = [item for item in given if which.passes(item, limit)]
        return reduction.compute([change.value(item, amount) for item in chosen])

    arguments = [
        _telling(draw, kind, lambda item: which.passes(item, limit)) for _ in range(_CASES)
    ]
    return _Function(head, body, tuple((given, expected(given)) for given in arguments))


def function_text(number: int, *, held_out: bool) -> GeneratedText:
    """Three functions; the body of the last is asked for. Its answer is what `is_right` reads."""
    draw = Draw(number)
    combinations = draw.some(_combinations(held_out=held_out), _FUNCTIONS)
    *before, last = (_function(draw, combination) for combination in combinations)
    texts = "".join(f"{function.text}\n\n\n" for function in before)
    answer = json.dumps({"head": last.head, "cases": last.cases})
    return GeneratedText(f"functions {number}", texts + last.head, f"\n{last.body}\n", answer)
