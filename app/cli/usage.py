"""What a command line gets wrong before any command runs, in one line that says what would work."""

from typing import Any

import typer
from pydantic import ValidationError

from analysis.errors import did_you_mean, sentence
from pruning.requests.base import plain_problem


def usage_problem(error: typer.TyperException) -> str:
    """One line on a wrong option, value or command; empty where the help was shown instead."""
    raised: Any = error  # only some of typer's errors have an option, a parameter or a context
    context = getattr(raised, "ctx", None)
    program = context.command_path if context else "moeprune"
    asked = f" `{program} --help` says more."
    name = str(getattr(raised, "option_name", ""))
    if name and context:
        known = [each for item in context.command.params for each in item.opts]
        hint = did_you_mean(name, known)
        return f"`{program}` has no option {name}.{hint or asked}"
    if name:
        return f"{name} needs a value: write {name} VALUE."
    if not isinstance(error, typer.BadParameter) or error.param is None:
        message = sentence(error.message) if error.message else ""
        return message + asked if message.endswith(".") else message
    shown = error.param.get_error_hint().replace("'", "")
    if not error.message:
        return f"`{program}` needs {shown}: {_help(error.param)}"
    cause = error.__cause__
    if isinstance(cause, ValidationError):
        return sentence(f"{shown}: {plain_problem(cause.errors(include_url=False)[0])}")
    return f"{shown}: {sentence(error.message)}"


def _help(parameter: Any) -> str:
    text = " ".join(str(parameter.help or "").split())
    return sentence(text)
