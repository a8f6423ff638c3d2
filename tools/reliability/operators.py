"""Mutants of a module: each is its syntax tree with one thing changed, as a slip would change it.

Left alone is what no test of behaviour can see: words of messages and docstrings, annotations,
decorators, and `strict=` of a `zip`.
"""

import ast
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from types import CodeType
from typing import Any

_COMPARED: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Lt: (ast.LtE, ast.Gt),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.Lt),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,),  # codespell:ignore
    ast.NotIn: (ast.In,),  # codespell:ignore
}
_COMPUTED: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Add,
    ast.Pow: ast.Mult,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
    ast.BitXor: ast.BitAnd,
}
_CALLED = {"min": "max", "max": "min", "any": "all", "all": "any", "sorted": "list"}
_UNCHANGED = ("annotation", "returns", "decorator_list", "keywords", "type_params")


@dataclass(frozen=True, eq=False)
class Mutant:
    """One change.

    Args:
        parent: the node that changes.
        field: its field.
        index: the place in the field, where that is a list.
        before: what stands there.
        after: what will stand there.
        function: qualified name of the outermost function that the change lies in; empty where it
            runs when the module is imported.
        lines: first and last line of the statement, without those of the statements inside.
    """

    parent: ast.AST
    field: str
    index: int | None
    before: ast.AST
    after: ast.AST
    function: str
    lines: tuple[int, int]

    def __str__(self) -> str:
        before, after = (" ".join(ast.unparse(node).split()) for node in (self.before, self.after))
        return f"{before[:90]}  ->  {after[:90]}"

    @contextmanager
    def applied(self) -> Iterator[None]:
        """The tree is changed until the end."""
        self._put(self.after)
        try:
            yield
        finally:
            self._put(self.before)

    def _put(self, node: ast.AST) -> None:
        if self.index is None:
            setattr(self.parent, self.field, node)
        else:
            getattr(self.parent, self.field)[self.index] = node


@dataclass(frozen=True, eq=False)
class Module:
    """A module to change.

    Args:
        file: its path, as Python knows it.
        tree: its syntax tree.
        mutants: all of them, in the order of the text.
    """

    file: str
    tree: ast.Module
    mutants: tuple[Mutant, ...]

    def text(self) -> str:
        """The text of the tree as it is now, without comments."""
        return ast.unparse(self.tree)

    def code(self, mutant: Mutant | None = None) -> CodeType:
        """The compiled module with a change, or as it is."""
        if mutant is None:
            return compile(self.tree, self.file, "exec")
        with mutant.applied():
            return compile(self.tree, self.file, "exec")


def read_module(file: str, text: str) -> Module:
    """All mutants of a module's text."""
    tree = ast.parse(text, file)
    return Module(file, tree, tuple(_walk(tree, "", "", (1, 1))))


def _walk(node: ast.AST, prefix: str, function: str, lines: tuple[int, int]) -> Iterator[Mutant]:
    """Mutants below a node.

    Args:
        node: the root.
        prefix: classes that it lies in, each with a dot.
        function: see `Mutant`.
        lines: see `Mutant`.
    """
    if isinstance(node, ast.ClassDef):
        prefix += f"{node.name}."
    for field, value in ast.iter_fields(node):
        if field in _UNCHANGED and not (field == "keywords" and isinstance(node, ast.Call)):
            continue
        inside = function
        if isinstance(node, ast.FunctionDef) and field == "body":
            inside = function or prefix + node.name
        children = value if isinstance(value, list) else [value]
        for number, child in enumerate(children):
            if not isinstance(child, ast.AST) or _is_left_alone(child):
                continue
            span = _span(child, lines)
            place = number if isinstance(value, list) else None
            for after in _changes(child, node, field):
                ast.fix_missing_locations(ast.copy_location(after, child))
                yield Mutant(node, field, place, child, after, inside, span)
            yield from _walk(child, prefix, inside, span)


def _is_left_alone(node: ast.AST) -> bool:
    """Whether it is a docstring, words for a person or `strict=`."""
    if isinstance(node, ast.Expr):
        return isinstance(node.value, ast.Constant)
    if isinstance(node, ast.keyword):
        return node.arg == "strict"
    is_text = isinstance(node, ast.Constant) and isinstance(node.value, str)
    return is_text and " " in ast.literal_eval(node)


def _span(node: ast.AST, lines: tuple[int, int]) -> tuple[int, int]:
    """Lines of a statement, of one with others inside only those before them."""
    if not isinstance(node, ast.stmt | ast.ExceptHandler):
        return lines
    body = getattr(node, "body", None)
    last = body[0].lineno - 1 if isinstance(body, list) else node.end_lineno
    return node.lineno, max(node.lineno, last or 0)


def _changes(node: ast.AST, parent: ast.AST, field: str) -> Iterator[ast.AST]:
    """What may stand in a node's place."""
    if isinstance(node, ast.stmt):
        yield from _of_statement(node)
    for kind, changes in _BY_KIND.items():
        if isinstance(node, kind) and not isinstance(parent, ast.JoinedStr):
            yield from changes(node)
    is_question = field == "test" or (field == "ifs" and isinstance(parent, ast.comprehension))
    if is_question and not isinstance(parent, ast.IfExp):
        yield ast.Constant(True)
        if isinstance(node, ast.expr) and not isinstance(node, ast.Compare | ast.UnaryOp):
            yield ast.UnaryOp(ast.Not(), node)


def _of_statement(node: ast.stmt) -> Iterator[ast.AST]:
    nothing = ast.Constant(None)
    match node:
        case ast.Expr() | ast.Raise() | ast.AugAssign() | ast.Delete():
            yield ast.Pass()
        case ast.Return(value=value) if value and ast.unparse(value) != "None":
            yield ast.Return(nothing)
        case ast.Assign(value=value) if ast.unparse(value) != "None":
            yield ast.Assign(node.targets, nothing)
        case ast.AnnAssign(value=value) if value and ast.unparse(value) != "None":
            yield ast.AnnAssign(node.target, node.annotation, nothing, node.simple)
        case ast.Continue():
            yield ast.Break()
        case ast.Break():
            yield ast.Continue()
        case _:
            pass
    if isinstance(node, ast.AugAssign) and type(node.op) in _COMPUTED:
        yield ast.AugAssign(node.target, _COMPUTED[type(node.op)](), node.value)


def _of_constant(node: ast.Constant) -> Iterator[ast.AST]:
    match node.value:
        case bool(value):
            yield ast.Constant(not value)
        case int(value) | float(value):
            yield ast.Constant(value + 1)
            if value:
                yield ast.Constant(value - 1)
        case str(value):
            yield ast.Constant(f"{value}XX")
        case bytes(value):
            yield ast.Constant(value + b"XX")
        case _:
            pass


def _of_binary(node: ast.BinOp) -> Iterator[ast.AST]:
    if type(node.op) in _COMPUTED:
        yield ast.BinOp(node.left, _COMPUTED[type(node.op)](), node.right)


def _of_call(node: ast.Call) -> Iterator[ast.AST]:
    name = node.func.id if isinstance(node.func, ast.Name) else ""
    if name in _CALLED and not node.keywords:
        yield ast.Call(ast.Name(_CALLED[name], ast.Load()), node.args, [])
    has_order = len(node.args) > 1 and name not in ("min", "max")
    if has_order and not any(isinstance(each, ast.Starred) for each in node.args[:2]):
        first, second, *rest = node.args
        if ast.dump(first) != ast.dump(second):
            yield ast.Call(node.func, [second, first, *rest], node.keywords)
    for number, keyword in enumerate(node.keywords):
        if keyword.arg != "strict":
            others = [*node.keywords[:number], *node.keywords[number + 1 :]]
            yield ast.Call(node.func, node.args, others)


def _of_junction(node: ast.BoolOp) -> Iterator[ast.AST]:
    yield ast.BoolOp(ast.And() if isinstance(node.op, ast.Or) else ast.Or(), node.values)
    for number in range(len(node.values)):
        rest = [*node.values[:number], *node.values[number + 1 :]]
        yield ast.BoolOp(node.op, rest) if len(rest) > 1 else rest[0]


def _of_comparison(node: ast.Compare) -> Iterator[ast.AST]:
    for number, each in enumerate(node.ops):
        for other in _COMPARED[type(each)]:
            ops = [*node.ops[:number], other(), *node.ops[number + 1 :]]
            yield ast.Compare(node.left, ops, node.comparators)


def _of_slice(node: ast.Slice) -> Iterator[ast.AST]:
    for bound in ("lower", "upper"):
        if getattr(node, bound):
            changed = deepcopy(node)
            setattr(changed, bound, None)
            yield changed


_BY_KIND: dict[type[ast.AST], Callable[[Any], Iterator[ast.AST]]] = {
    ast.Constant: _of_constant,
    ast.Call: _of_call,
    ast.BoolOp: _of_junction,
    ast.Compare: _of_comparison,
    ast.BinOp: _of_binary,
    ast.UnaryOp: lambda node: iter([node.operand]),
    ast.IfExp: lambda node: iter([ast.IfExp(node.test, node.orelse, node.body)]),
    ast.Slice: _of_slice,
}
