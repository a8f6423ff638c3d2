"""Help as plain lines: usage, what a command does, an example, and what it takes, by heading."""

from collections.abc import Callable, Iterable, Iterator
from textwrap import wrap
from typing import Any, Final, TypeVar

import typer
from typer.core import TyperCommand, TyperGroup

from app.console import out

EVERYWHERE: Final = {
    "--json": "The result as one JSON object.",
    "--quiet": "Errors and the result alone.",
    "--debug": "The full trace of an error.",
}
EXAMPLE: Final = "Example: "  # begins the paragraph of a docstring that has one
_WIDEST = 100
_LEFT = 26  # where explanations begin
Function = TypeVar("Function", bound=Callable[..., Any])
Row = tuple[str, str]  # what a person types, and what it means


def paragraphs(text: str) -> tuple[list[str], str]:
    """The paragraphs of a command's help, each on one line, and its example."""
    every = [" ".join(lines.split()) for lines in text.split("\n\n")]
    examples = [
        paragraph.removeprefix(EXAMPLE) for paragraph in every if paragraph.startswith(EXAMPLE)
    ]
    return [paragraph for paragraph in every if not paragraph.startswith(EXAMPLE)], "".join(
        examples
    )


class _Plain:
    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the help; called by typer."""
        formatter.write("\n".join(_lines(self, ctx)))


HAS_EMPTY_WORD: Final = "has an empty word"  # in the `meta` of a command's context
EMPTY_PATH: Final = "it is empty; name a file or a folder"


class Command(_Plain, TyperCommand):
    """A command whose help is plain lines; it remembers that a word was empty.

    Of an empty word typer makes the path ".".
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the words of the command line; called by typer."""
        ctx.meta[HAS_EMPTY_WORD] = "" in args
        return super().parse_args(ctx, args)


class Group(_Plain, TyperGroup):
    """A group of commands whose help is plain lines."""


class Commands(typer.Typer):
    """A group of commands, as an application of typer."""

    def __init__(self, words: str) -> None:
        super().__init__(cls=Group, help=words, no_args_is_help=True, add_completion=False)

    def command(self, name: str | None = None, **settings: Any) -> Callable[[Function], Function]:
        """Add a function as a command."""
        return super().command(name, cls=Command, **settings)


def _lines(command: Any, ctx: Any) -> Iterator[str]:
    said, example = paragraphs(command.help or "")
    params = command.get_params(ctx)
    places = [parameter for parameter in params if parameter.param_type_name == "argument"]
    words = [place.metavar or place.name.upper() for place in places]
    is_group = isinstance(command, TyperGroup)
    yield " ".join(["Usage:", ctx.command_path, *words, *["COMMAND"] * is_group, "[OPTIONS]"])
    for paragraph in said:
        yield ""
        yield from wrap(paragraph, _width())
    if example:
        lines = wrap(example, _width() - 6, break_on_hyphens=False, break_long_words=False)
        yield from _section("Example", [(" \\\n    ".join(lines), "")])
    if places:
        helps = [place.help or "" for place in places]
        yield from _section("Arguments", zip(words, helps, strict=True))
    options = [parameter for parameter in params if parameter.param_type_name == "option"]
    if is_group:
        names = command.list_commands(ctx)
        commands = [command.get_command(ctx, name) for name in names]
        rows = [(command.name, paragraphs(command.help or "")[0][0]) for command in commands]
        headings = [command.rich_help_panel or "Commands" for command in commands]
        yield from _by_heading(rows, headings, max(map(len, names)) + 4)
    headings = [getattr(option, "rich_help_panel", None) or "Options" for option in options]
    yield from _by_heading([_row(option) for option in options], headings)
    yield from _section("With every command, anywhere on its line", EVERYWHERE.items())


def _row(option: Any) -> Row:
    """The names of an option with what it takes, and what it means."""
    names = sorted([*option.opts, *option.secondary_opts], key=lambda name: name[:2] == "--")
    takes = "" if option.is_flag or option.count else f" {option.metavar or 'VALUE'}"
    about, default = [option.help or ""], option.default
    if option.required:
        about.append("[required]")
    elif isinstance(default, list | tuple) and default:
        about.append(f"[default: {', '.join(map(str, default))}]")
    elif default not in (None, "", ()) and not isinstance(default, bool) and not option.is_flag:
        about.append(f"[default: {default}]")
    elif default is True and option.secondary_opts:
        about.append(f"[default: {option.opts[0]}]")
    return ", ".join(names) + takes, " ".join(about)


def _by_heading(rows: Iterable[Row], headings: Iterable[str], left: int = _LEFT) -> Iterator[str]:
    sections: dict[str, list[Row]] = {}
    for row, heading in zip(rows, headings, strict=True):
        sections.setdefault(heading, []).append(row)
    for heading, members in sections.items():
        yield from _section(heading, members, left)


def _section(heading: str, rows: Iterable[Row], left: int = _LEFT) -> Iterator[str]:
    yield ""
    yield f"{heading}:"
    for names, about in rows:
        lines = wrap(about, _width() - left, break_on_hyphens=False, break_long_words=False)
        # Names too long for their column stand on a line of their own.
        fits = bool(lines) and len(names) + 4 <= left
        yield f"  {names}".ljust(left) + lines.pop(0) if fits else f"  {names}"
        yield from (" " * left + line for line in lines)


def _width() -> int:
    return min(out.width, _WIDEST)
