"""The reference of the command line: every command with its help, arguments, options, defaults."""

import inspect
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, get_args

import typer
from typer.models import ArgumentInfo

from app.cli import COMMANDS, find
from app.cli.help import paragraphs
from tools.reference.markdown import cell, table

__all__ = ["all_commands", "commands", "options_of"]

Function = Callable[..., Any]


def all_commands() -> Iterator[tuple[str, Function]]:
    """(words, function) of every command, such as ("runs list", ...), as `--help` orders them."""
    for name in COMMANDS:
        found = find(name)
        if not isinstance(found, typer.Typer):
            yield name, found
            continue
        for command in found.registered_commands:
            if command.callback:
                yield f"{name} {command.name or command.callback.__name__}", command.callback


def commands(_root: Path) -> str:
    """A section for each command: what it does, and a table of what it takes."""
    return "\n\n".join(_section(words, function) for words, function in all_commands())


def options_of(function: Function) -> set[str]:
    """Every name of every option of a command, such as `--out` and `-o`."""
    return {name for parameter in _taken(function) for name in _names(parameter) if name[0] == "-"}


def _section(words: str, function: Function) -> str:
    taken = _taken(function)
    said, example = paragraphs(inspect.getdoc(function) or "")
    parts = [f"### moeprune {words}", " ".join(said), f"Example: `{example}`"]
    if taken:
        head = ("argument or option", "takes", "default", "meaning")
        parts.append(table(head, [_row(parameter) for parameter in taken]))
    return "\n\n".join(parts)


def _taken(function: Function) -> list[inspect.Parameter]:
    parameters = inspect.signature(function, eval_str=True).parameters.values()
    return [parameter for parameter in parameters if parameter.annotation is not typer.Context]


def _row(parameter: inspect.Parameter) -> tuple[str, str, str, str]:
    _, info = get_args(parameter.annotation)
    names = _names(parameter)
    shown = ", ".join(f"`{name}`" for name in names)
    takes = "" if isinstance(info, ArgumentInfo) else _takes(info.metavar or "")
    return shown, takes, _default(parameter, names), cell(info.help or "")


def _names(parameter: inspect.Parameter) -> tuple[str, ...]:
    kind, info = get_args(parameter.annotation)
    if isinstance(info, ArgumentInfo):
        return (info.metavar or parameter.name.upper(),)
    # Inside Annotated the first name lands where a default would stand.
    given = (info.default, *(info.param_decls or ()))
    names = tuple(word for name in given if isinstance(name, str) for word in name.split("/"))
    word = parameter.name.replace("_", "-")
    return names or ((f"--{word}", f"--no-{word}") if kind is bool else (f"--{word}",))


def _takes(metavar: str) -> str:
    """What an option takes: its choices, or a word; nothing for a switch."""
    return ", ".join(f"`{word}`" for word in metavar.split("|") if word)


def _default(parameter: inspect.Parameter, names: Sequence[str]) -> str:
    default = parameter.default
    if default is inspect.Parameter.empty:
        return "required"
    if isinstance(default, bool):
        # A switch that is off has no default worth a word, unless it can also be switched off.
        on, *off = names
        return f"`{on if default else off[0]}`" if off else ""
    if isinstance(default, tuple):
        return ", ".join(f"`{value}`" for value in default)
    return "" if default is None else f"`{default}`"
