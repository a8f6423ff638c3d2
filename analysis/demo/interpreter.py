"""Runs a function that a model wrote, without ever giving it to Python.

The text is parsed by `ast`, and only the nodes of small functions on lists are evaluated, with
limits on steps and sizes; anything else is an error, and the function is wrong.
"""

import ast
import json
import operator
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from analysis.files.json_text import parse_json

_MOST_CHARS = 2_000
_MOST_STEPS = 5_000  # evaluated nodes of one call
_MOST_ITEMS = 1_000  # of a list, or characters of a text
_MOST_BITS = 256  # of a number

Names = dict[str, Any]


class CannotRun(Exception):
    """The text is no function of the kind that is understood, or it fails or exceeds a limit."""


class _Return(Exception):
    def __init__(self, value: Any) -> None:
        self.value = value


_BINARY: Mapping[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
_UNARY: Mapping[type[ast.unaryop], Callable[[Any], Any]] = {
    ast.USub: operator.neg,
    ast.UAdd: operator.pos,
    ast.Not: operator.not_,
}
_COMPARED: Mapping[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.In: lambda left, right: left in right,
    ast.NotIn: lambda left, right: left not in right,
    ast.Is: lambda left, right: left is right,
    ast.IsNot: lambda left, right: left is not right,
}
_FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    function.__name__: function
    for function in (sum, len, max, min, sorted, abs, set, list, any, all, tuple, int, str, bool)
}
_METHODS: Mapping[str, tuple[type, ...]] = {
    "append": (list,),
    "count": (list, str),
    "endswith": (str,),
    "index": (list, str),
    "join": (str,),
    "lower": (str,),
    "startswith": (str,),
    "upper": (str,),
}
_KEYWORDS = frozenset({"default", "reverse"})


class _Run:
    """One call of a function: names, and what is left of its steps."""

    def __init__(self) -> None:
        self._steps = _MOST_STEPS

    def call(self, function: ast.FunctionDef, argument: Any) -> Any:
        names = {function.args.args[0].arg: argument}
        try:
            self._block(function.body, names)
        except _Return as returned:
            return returned.value
        return None

    def _spend(self) -> None:
        self._steps -= 1
        if self._steps < 0:
            raise CannotRun("too many steps")

    def _block(self, statements: list[ast.stmt], names: Names) -> None:
        for statement in statements:
            self._statement(statement, names)

    def _statement(self, node: ast.stmt, names: Names) -> None:
        self._spend()
        match node:
            case ast.Return(value=value):
                raise _Return(None if value is None else self._value(value, names))
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                names[name] = self._value(value, names)
            case ast.AugAssign(target=ast.Name(id=name), op=op, value=value):
                names[name] = self._binary(op, names[name], self._value(value, names))
            case ast.For(target=ast.Name(id=name), iter=items, body=body, orelse=[]):
                for item in self._items(items, names):
                    names[name] = item
                    self._block(body, names)
            case ast.If(test=test, body=body, orelse=otherwise):
                self._block(body if self._value(test, names) else otherwise, names)
            case ast.Expr(value=value):
                self._value(value, names)
            case ast.Pass():
                pass
            case _:
                raise CannotRun(type(node).__name__)

    def _items(self, node: ast.expr, names: Names) -> list[Any]:
        """A copy, so that a loop ends that appends to what it walks."""
        return list(self._value(node, names))

    def _item(self, node: ast.expr, names: Names) -> Any:
        return _flat(self._value(node, names))

    def _value(self, node: ast.expr, names: Names) -> Any:
        self._spend()
        match node:
            case ast.Constant(value=int() | str() | None as value):
                return value
            case ast.Name(id=name):
                return names[name]
            case ast.List(elts=parts):
                return [self._item(part, names) for part in parts]
            case ast.Tuple(elts=parts):
                return tuple(self._item(part, names) for part in parts)
            case ast.BinOp(left=left, op=op, right=right):
                return self._binary(op, self._value(left, names), self._value(right, names))
            case ast.UnaryOp(op=sign, operand=operand):
                return _UNARY[type(sign)](self._value(operand, names))
            case ast.BoolOp(op=joint, values=parts):
                return self._joint(joint, parts, names)
            case ast.Compare(left=left, ops=ops, comparators=others):
                return self._compared(self._value(left, names), ops, others, names)
            case ast.IfExp(test=test, body=body, orelse=otherwise):
                return self._value(body if self._value(test, names) else otherwise, names)
            case _:
                return self._made(node, names)

    def _made(self, node: ast.expr, names: Names) -> Any:
        """What a comprehension, a part of a value or a call gives."""
        match node:
            case ast.ListComp(elt=element, generators=[part]):
                return list(self._each(element, part, names))
            case ast.GeneratorExp(elt=element, generators=[part]):
                return list(self._each(element, part, names))
            case ast.SetComp(elt=element, generators=[part]):
                return set(self._each(element, part, names))
            case ast.Subscript(value=value, slice=ast.Slice(lower=low, upper=high, step=step)):
                place = slice(*(part and self._value(part, names) for part in (low, high, step)))
                return self._value(value, names)[place]
            case ast.Subscript(value=value, slice=index):
                return self._value(value, names)[self._value(index, names)]
            case ast.Call(func=function, args=arguments, keywords=keywords):
                return self._called(function, arguments, keywords, names)
            case _:
                raise CannotRun(type(node).__name__)

    def _binary(self, op: ast.operator, left: Any, right: Any) -> Any:
        if isinstance(op, ast.Mult) and not (isinstance(left, int) and isinstance(right, int)):
            raise CannotRun("repetition")  # of a text or list: its size is not known before
        if isinstance(op, ast.Mod) and not isinstance(left, int):
            raise CannotRun("formatting")
        return _checked(_BINARY[type(op)](left, right))

    def _joint(self, op: ast.boolop, parts: list[ast.expr], names: Names) -> Any:
        value: Any = None
        for part in parts:
            value = self._value(part, names)
            if bool(value) is isinstance(op, ast.Or):
                break
        return value

    def _compared(
        self, left: Any, ops: list[ast.cmpop], others: list[ast.expr], names: Names
    ) -> bool:
        for op, other in zip(ops, others, strict=True):
            right = self._value(other, names)
            if not _COMPARED[type(op)](left, right):
                return False
            left = right
        return True

    def _each(self, node: ast.expr, part: ast.comprehension, names: Names) -> Iterator[Any]:
        if not isinstance(part.target, ast.Name) or part.is_async:
            raise CannotRun("comprehension")
        for item in self._items(part.iter, names):
            inner = names | {part.target.id: item}
            if all(self._value(test, inner) for test in part.ifs):
                yield self._item(node, inner)

    def _called(
        self, function: ast.expr, nodes: list[ast.expr], named: list[ast.keyword], names: Names
    ) -> Any:
        if any(keyword.arg not in _KEYWORDS for keyword in named):
            raise CannotRun("keyword")
        keywords = {str(keyword.arg): self._value(keyword.value, names) for keyword in named}
        match function:
            case ast.Name(id=name) if name in _FUNCTIONS and name not in names:
                call: Callable[..., Any] = _FUNCTIONS[name]
            case ast.Attribute(value=owner, attr=name) if name in _METHODS:
                value = self._value(owner, names)
                if not isinstance(value, _METHODS[name]):
                    raise CannotRun(name)
                call = getattr(value, name)
            case _:
                raise CannotRun("call")
        values = [self._value(node, names) for node in nodes]
        if isinstance(function, ast.Attribute) and function.attr == "append":
            values = [_flat(value) for value in values]
        return _checked(call(*values, **keywords))


def _flat(value: Any) -> Any:
    """An item of a list: a list that holds another twice, and so on, has no size that we know."""
    if isinstance(value, list | set | tuple):
        raise CannotRun("a list in a list")
    return value


def _checked(value: Any) -> Any:
    """The value, if it is not too large."""
    if isinstance(value, int) and value.bit_length() > _MOST_BITS:
        raise CannotRun("a large number")
    if isinstance(value, str | list | set | tuple) and len(value) > _MOST_ITEMS:
        raise CannotRun("a large value")
    return value


def parsed(text: str) -> ast.FunctionDef:
    """The one function of one argument that a text is; raises `CannotRun` for any other text."""
    if len(text) > _MOST_CHARS:
        raise CannotRun("a long text")
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise CannotRun(str(error)) from error
    match tree.body:
        case [
            ast.FunctionDef(args=ast.arguments(args=[_], defaults=[]), decorator_list=[]) as only
        ]:
            return only
        case _:
            raise CannotRun("not one function")


def called(function: ast.FunctionDef, argument: Any) -> Any:
    """What the function returns for an argument; raises `CannotRun` where it fails."""
    try:
        return _Run().call(function, argument)
    except (ArithmeticError, LookupError, TypeError, ValueError, RecursionError) as error:
        raise CannotRun(str(error)) from error


def body_of(written: str) -> str:
    """The indented lines that a text begins with: a model may go on with another function."""
    lines = []
    for line in written.split("\n"):
        if line.strip() and not line.startswith(" "):
            break
        lines.append(line)
    return "\n".join(lines)


def is_asked(answer: str) -> bool:
    """Whether a text is an answer that `is_right` reads: a function's head and its cases."""
    try:
        asked = parse_json(answer)
    except ValueError:
        return False
    match asked:
        case {"head": str(), "cases": [_, *_] as cases}:
            return all(_is_case(case) for case in cases)
    return False


def _is_case(case: Any) -> bool:
    """Whether it is a list to call the function with, and what that returns."""
    return isinstance(case, list) and len(case) == 2 and isinstance(case[0], list)


def is_right(written: str, answer: str) -> bool:
    """Whether a written body returns what it should, for every case of a generated function."""
    asked = json.loads(answer)
    try:
        function = parsed(asked["head"] + body_of(written))
        for given, expected in asked["cases"]:
            value = called(function, list(given))
            if type(value) is not type(expected) or value != expected:
                return False
    except CannotRun:
        return False
    return True
