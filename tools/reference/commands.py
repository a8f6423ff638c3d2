"""The reference of the command line: every command with its help, arguments, options, defaults."""

import inspect
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, get_args

import typer
from typer.models import ArgumentInfo

from app.cli import cli
from tools.reference.markdown import cell, table

__all__ = ["all_commands", "commands", "options_of"]

Function = Callable[..., Any]
_TAKES = {str: "text", int: "number", float: "number", Path: "path", bool: ""}


def all_commands(group: typer.Typer = cli, before: str = "") -> Iterator[tuple[str, Function]]:
    """(words, function) of every command, such as ("runs list", ...), as `--help` orders them."""
    for command in group.registered_commands:
        if command.callback:
            yield f"{before}{command.name or command.callback.__name__}", command.callback
    for inner in group.registered_groups:
        if inner.typer_instance:
            yield from all_commands(inner.typer_instance, f"{before}{inner.name} ")


def commands(_root: Path) -> str:
    """A section for each command: what it does, and a table of what it takes."""
    return "\n\n".join(_section(words, function) for words, function in all_commands())


def options_of(function: Function) -> set[str]:
    """Every name of every option of a command, such as `--out` and `-o`."""
    parameters = inspect.signature(function, eval_str=True).parameters.values()
    return {name for parameter in parameters for name in _names(parameter) if name[0] == "-"}


def _section(words: str, function: Function) -> str:
    taken = inspect.signature(function, eval_str=True).parameters.values()
    parts = [f"### moeprune {words}", " ".join((inspect.getdoc(function) or "").split())]
    if taken:
        head = ("argument or option", "takes", "default", "meaning")
        parts.append(table(head, [_row(parameter) for parameter in taken]))
    return "\n\n".join(parts)


def _row(parameter: inspect.Parameter) -> tuple[str, str, str, str]:
    kind, info = get_args(parameter.annotation)
    names = _names(parameter)
    shown = ", ".join(f"`{name}`" for name in names)
    return shown, _takes(kind), _default(parameter, names), cell(info.help or "")


def _names(parameter: inspect.Parameter) -> tuple[str, ...]:
    kind, info = get_args(parameter.annotation)
    if isinstance(info, ArgumentInfo):
        return (info.metavar or parameter.name.upper(),)
    # Inside Annotated the first name lands where a default would stand.
    given = (info.default, *(info.param_decls or ()))
    names = tuple(name for name in given if isinstance(name, str))
    word = parameter.name.replace("_", "-")
    return names or ((f"--{word}", f"--no-{word}") if kind is bool else (f"--{word}",))


def _takes(kind: Any) -> str:
    """What an option takes, in a word: text, number, path; nothing for a switch."""
    if kind in _TAKES:
        return _TAKES[kind]
    (inner,) = (part for part in get_args(kind) if part is not type(None))
    repeated = getattr(kind, "__origin__", None) is list
    return _takes(inner) + (", repeatable" if repeated else "")


def _default(parameter: inspect.Parameter, names: Sequence[str]) -> str:
    default = parameter.default
    if default is inspect.Parameter.empty:
        return "required"
    if isinstance(default, bool):
        # A switch that is off has no default worth a word, unless it can also be switched off.
        on, *off = names
        return f"`{on if default else off[0]}`" if off else ""
    return "" if default is None else f"`{default}`"
