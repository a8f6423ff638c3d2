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
    see_help = f" `{program} --help` says more."
    name = str(getattr(raised, "option_name", ""))
    if name and context:
        option_names = [each for item in context.command.params for each in item.opts]
        hint = did_you_mean(name, option_names)
        if name == "--corpus" and "--calibrated-on" in option_names:
            hint = " It reads no text; --calibrated-on names the calibrated corpora that rank."
        return f"`{program}` has no option {name}.{hint or see_help}"
    if name:
        return f"{name} needs a value: write {name} VALUE."
    if not isinstance(error, typer.BadParameter) or error.param is None:
        message = sentence(error.message) if error.message else ""
        return message + see_help if message.endswith(".") else message
    parameter = error.param.get_error_hint().replace("'", "")
    if not error.message:
        about: Any = error.param  # the base class has no help
        return f"`{program}` needs {parameter}: {sentence(' '.join(str(about.help or '').split()))}"
    cause = error.__cause__
    if isinstance(cause, ValidationError):
        return sentence(f"{parameter}: {plain_problem(cause.errors(include_url=False)[0])}")
    return f"{parameter}: {sentence(error.message)}"
