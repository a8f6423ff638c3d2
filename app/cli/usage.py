"""What a command line gets wrong before any command runs, in one line that says what would work."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import typer
from pydantic import ValidationError

from analysis.checkpoint.index import CONFIG_NAME
from analysis.errors import did_you_mean, sentence
from app.cli.help import EMPTY_PATH
from pruning.spec.base import plain_problem

# Words that are no commands -> what people who type them look for.
LOOKED_FOR: Final = {
    "version": "`moeprune --version` shows it.",
    "help": "`moeprune --help` lists the commands; each has --help.",
    "serve": "`moeprune export` prints the commands that serve an export; `moeprune app` opens the "
    "dashboard.",
    "info": "`moeprune inspect MODEL` shows a model.",
    "init": "`moeprune recipe init MODEL` writes a recipe.",
    "list": "`moeprune runs list` and `moeprune jobs list` list what there is.",
    "show": "`moeprune plans show PLAN` shows a plan, `moeprune runs show RUN` a run.",
    "diff": "`moeprune plans diff A B` compares two plans.",
}


def usage_problem(error: typer.TyperException) -> str:
    """One line on a wrong option, value or command; empty where the help was shown instead."""
    raised: Any = error  # only some of typer's errors have an option, a parameter or a context
    context = getattr(raised, "ctx", None)
    program = context.command_path if context else "moeprune"
    see_help = f" `{program} --help` says more."
    if context and (problem := _no_model(context)):
        return problem
    name = str(getattr(raised, "option_name", ""))
    if name and context:
        return f"`{program}` has no option {name}.{_right_option(name, context) or see_help}"
    if name:
        return f"{name} needs a value: write {name} VALUE."
    if not isinstance(error, typer.BadParameter) or error.param is None:
        message = sentence(error.message) if error.message else ""
        if extra := re.fullmatch(r"Got unexpected extra argument\(?s?\)? \((.+)\)\.", message):
            message = _too_many(extra[1], context)
        elif (unknown := re.match(r"(No such command '(\w+)')", message)) and (
            hint := "" if context and context.parent else LOOKED_FOR.get(unknown[2], "")
        ):
            return f"{unknown[1]}. {hint}"
        elif context and context.parent and message.startswith("No such") and "?" not in message:
            message += f" Known: {', '.join(context.command.list_commands(context))}."
        return message + see_help if message.endswith(".") else message
    parameter = error.param.get_error_hint().replace("'", "")
    if not error.message:
        about: Any = error.param  # the base class has no help
        return f"`{program}` needs {parameter}: {sentence(' '.join(str(about.help or '').split()))}"
    cause = error.__cause__
    if isinstance(cause, ValidationError):
        return sentence(f"{parameter}: {plain_problem(cause.errors(include_url=False)[0])}")
    is_empty = " '' is a directory" in error.message  # as which typer takes an empty path
    return f"{parameter}: {sentence(EMPTY_PATH if is_empty else error.message)}"


def _no_model(context: Any) -> str:
    """Where a file of ours stands in a model's place: where it goes; or empty."""
    model = Path(str(context.params.get("model") or ""))
    if model.suffix != ".json" or model.name == CONFIG_NAME:
        return ""
    return f"{model} is no model. MODEL comes first: `{context.command_path} MODEL --plan {model}`."


def _right_option(name: str, context: Any) -> str:
    """What an option that a command lacks should have been, or the commands that have it."""
    options = [option for item in context.command.params for option in item.opts]
    if name == "--corpus" and "--calibrated-on" in options:
        return " It reads no text; --calibrated-on names the calibrated corpora that rank."
    if name == "--calibrated-on" and "--corpus" in options:
        return " It reads text, which --corpus names; --calibrated-on is for ranking."
    if re.fullmatch("-[a-z]", name):
        return (
            f" Names of options begin with two dashes. `{context.command_path} --help` says more."
        )
    owners = list(_commands_with(name, context.find_root()))
    if not owners:
        return did_you_mean(name, options)
    in_recipe = any(_word(item) == "RECIPE" for item in context.command.params)
    where = " Write it in the recipe." if in_recipe else f" Commands with it: {', '.join(owners)}."
    return f"{where} `{context.command_path} --help` says more."


def _commands_with(name: str, root: Any) -> Iterator[str]:
    for command_name in root.command.list_commands(root):
        _, command, _ = root.command.resolve_command(root, [command_name])
        inside = getattr(command, "commands", None)
        every = (
            {f"{command_name} {key}": subcommand for key, subcommand in inside.items()}
            if inside
            else {}
        )
        for path, leaf in (every or {command_name: command}).items():
            if any(name in item.opts for item in leaf.params):
                yield path


def _too_many(words: str, context: Any) -> str:
    """The words of a command line beyond what its command takes."""
    params = context.command.params
    takes = " ".join(_word(item) for item in params if item.param_type_name == "argument")
    has_plan = any("--plan" in item.opts for item in params)
    hint = f" Write --plan {words}." if has_plan and words.endswith(".json") else ""
    return f"`{context.command_path}` takes {takes or 'no words'}; {words} is too much.{hint}"


def _word(parameter: Any) -> str:
    return str(parameter.metavar or parameter.name.upper())
