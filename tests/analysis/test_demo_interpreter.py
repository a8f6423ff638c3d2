"""Functions that a model wrote: run by our interpreter alone, and never longer than its limits."""

import json
from typing import Any

import pytest

from analysis.demo.generate.functions import function_text
from analysis.demo.interpreter import CannotRun, called, is_right, parsed

HEAD = 'def last(numbers):\n    """Return the last of the numbers, or None."""'
ANSWER = json.dumps({"head": HEAD, "cases": [[[3, 1, 2], 2], [[], None], [[5], 5]]})
RIGHT = "\n    result = None\n    for n in numbers:\n        result = n\n    return result\n"


def python_result(text: str, argument: list[Any]) -> Any:
    """What Python itself computes; only for text of our own generator."""
    names: dict[str, Any] = {}
    exec(compile(text, "generated", "exec"), names)  # noqa: S102
    (function,) = (value for name, value in names.items() if name != "__builtins__")
    return function(argument)


@pytest.mark.parametrize("held_out", [False, True])
def test_generated_functions_compute_what_their_docstrings_say(held_out):
    """Our interpreter, Python and the grammar's own arithmetic agree on every case."""
    cases = 0
    for number in range(300):
        text = function_text(number, held_out=held_out)
        asked = json.loads(text.answer)
        function = parsed(asked["head"] + text.response)
        for given, expected in asked["cases"]:
            assert called(function, list(given)) == expected, text.prompt
            assert python_result(asked["head"] + text.response, list(given)) == expected
            cases += 1
        assert is_right(text.response, text.answer)
    assert cases == 1800


WAYS = (
    *(RIGHT, RIGHT + "\n\ndef another(x):\n    return x\n"),
    "\n    return numbers[-1] if numbers else None",
    "\n    all = [n for n in numbers]\n    return all[-1] if all else None",
)
WRONG = (
    *("", "\n    return numbers[0]", "\n    return 2", "\n    return True"),
    "\n    return numbers[-1]",  # fails where there is none
    "\n    result = None\n    for n in numbers\n        result = n\n    return result",
    "\n    return __import__('os').getcwd()",
    "\n    return numbers.__class__.__mro__[-1]",
    "\n    return (lambda x: x[-1])(numbers)",
    "\n    import os\n    return numbers[-1]",
    "\n    return eval('numbers[-1]')",
    "\n    return last(numbers)",
    "\n    return f'{numbers}'",
    "\n    return '%s' % numbers",
    "\n    global numbers\n    return numbers[-1]",
    "\n    while True:\n        pass",
    "\n    return numbers[-1]\n" * 200,
    "\n    return [numbers][0][-1]",
)


@pytest.mark.parametrize("body", WAYS + WRONG)
def test_any_way_to_the_right_values_is_right_and_what_is_not_understood_is_wrong(body):
    assert is_right(body, ANSWER) is (body in WAYS)


@pytest.mark.parametrize(
    "body",
    [
        "for a in x:\n        for b in x:\n            for c in x:\n                pass",
        "n = 2\n    for a in x:\n        n = n * n\n    return n",
        "t = 'aa'\n    for a in x:\n        t = t + t\n    return t",
        "t = ['a']\n    for a in x:\n        t = t + t\n    return t",
        "return 'a' * 100000000",
        "return [0] * 100000000",
        "for a in x:\n        x.append(a)\n    for a in x:\n        x.append(a)\n    return x",
        # Lists that hold the list before twice: 2 ** 60 items, to write or to compare.
        "x = [1]" + "\n    x = [x, x]" * 60 + "\n    return str(x)",
        "x = [1]" + "\n    x = [a for a in [x, x]]" * 60 + "\n    return str(x)",
        "y = [1]"
        + "\n    z = []\n    z.append(y)\n    z.append(y)\n    y = z" * 30
        + "\n    str(y)",
        "x = [1]\n    y = [1]" + "\n    x = [x, x]\n    y = [y, y]" * 50 + "\n    return x == y",
        "return " + "-" * 1500 + "1",
        "return " + "(" * 900 + "1" + ")" * 900,
        "return " + "[" * 90 + "1" + "]" * 90 + "[0]" * 91,
    ],
)
def test_what_grows_without_end_is_stopped(body):
    with pytest.raises(CannotRun):
        many = list(range(400))
        called(parsed(f"def f(x):\n    {body}"), many)
        called(parsed(f"def f(x):\n    {body}"), many * 2)
        raise AssertionError("nothing stopped it")


def test_a_tuple_is_no_list():
    """As Python has it: it is no list that is asked for, and may hold what a text begins with."""
    answer = json.dumps({"head": "def f(x):", "cases": [[[1, 2], [1, 2]]]})
    assert not is_right("\n    return x[0], x[1]", answer)
    assert is_right("\n    return [x[0], x[1]]", answer)
    starting = parsed("def f(x):\n    return [w for w in x if w.startswith(('a', 'b'))]")
    assert called(starting, ["apple", "bear", "cat"]) == ["apple", "bear"]
