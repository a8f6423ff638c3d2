"""`moeprune`: the command line. Commands are thin; what they do lives in analysis and pruning."""

import logging
import os
import re
import sys
from collections.abc import Sequence
from functools import cache
from importlib import import_module
from typing import Annotated, Any, NoReturn

import typer

from analysis.errors import UserError
from analysis.files.shipped import tool_version
from app.cli.help import EVERYWHERE, Command, Group
from app.cli.launch import speak_for_all, speak_up
from app.console import err, finish, print_collected, speech
from pruning.actions.listing import SENTENCES, STEPS

# Step -> module and name of a command or group -> the first sentence of its help, for listing them.
# The module is imported when the command is asked for. The actions of a step come after these.
_STEPS = {
    "Begin": {
        "serve:demo": "Open the dashboard on the shipped demo model and its statistics; works "
        "offline.",
        "serve:app": "Open the dashboard.",
        "inspect:inspect": "Show architecture, experts, sizes and what can be pruned; reads "
        "headers only.",
        "recipe:recipe": "Recipes: init writes one.",
        "prune:prune": "Calibrate, plan or search, evaluate, export as a recipe says; rerun to "
        "resume.",
    },
    "Measure experts": {},
    "Look": {
        "rank:score": "Score every expert; writes layer, expert, score, saliency, rank, num_tokens "
        "as CSV.",
        "rank:overlap": "Compare the pruned sets of the calibrated corpora, pair by pair; writes "
        "CSV.",
        "rank:blend": "Mix calibrated corpora: how much of each corpus' saliency the kept experts "
        "hold.",
        "rank:compare": "Compare two plans: which experts both keep, one, or neither; writes CSV.",
        "plot:plot": "Draw a figure of the dashboard, or write the numbers behind it, without a "
        "browser session.",
        "plot:report": "Write figures with their sentences and numbers as one HTML page that opens "
        "offline.",
    },
    "Plan": {
        "plans:plan": "Choose the experts that stay, or the neurons in them; writes plan.json.",
        "plans:paths": "Keep the experts on the heaviest paths through the layers (MoE "
        "Pathfinder); writes plan.json.",
    },
    "Judge": {},
    "Ship": {
        "export": SENTENCES["export"],  # an action, in its place
        "ship:verify": "Check an exported checkpoint: bytes and hashes, loading, equality with the "
        "masked source.",
    },
    "Keep": {
        "cache:runs": "The cache of calibration runs.",
        "plans:plans": "Look at plans: show, diff.",
        "queue:jobs": "Jobs that the dashboard started.",
    },
}
# Heading -> place of a command -> the first sentence of its help; an action has its name alone.
_LISTED = {step: {**places, **STEPS.get(step, {})} for step, places in _STEPS.items()}
_PLACES = {place: sentence for places in _LISTED.values() for place, sentence in places.items()}
COMMANDS = {place.rpartition(":")[2]: sentence for place, sentence in _PLACES.items()}


def find(name: str) -> Any:
    """The function of a command, or a group of commands as a `typer.Typer`."""
    if name in SENTENCES:
        from app.cli.action import action_command  # numpy and more, which a list does without

        return action_command(name)
    module = next(place.partition(":")[0] for place in _PLACES if place.endswith(f":{name}"))
    return getattr(import_module(f"app.cli.{module}"), name)


def load(name: str) -> Any:
    """A command or a group, ready to run."""
    app = find(name)
    if not isinstance(app, typer.Typer):
        function, app = app, typer.Typer(pretty_exceptions_enable=False, add_completion=False)
        app.command(name, cls=Command)(function)
    command = typer.main.get_command(app)
    command.name = name
    command.context_settings.update(_HELP)
    return command


# One process may run several commands. They are its own: whoever loads one and asks for its help
# alone would leave it without `-h`.
_loaded = cache(load)

# Words that may stand anywhere on a command line, and groups of commands.
_ANYWHERE = frozenset(EVERYWHERE)
_HELP = {"help_option_names": ["--help", "-h"]}
_GROUPS = ("recipe", "runs", "plans", "jobs")


class _Commands(Group):
    """The commands by name; to list them, their help is enough."""

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[Any, Any, list[str]]:
        group, *words = [f"{args[0]}s", *args[1:]]
        if group in _GROUPS and words and words[0] in _loaded(group).commands:
            ctx.fail(f"Write `moeprune {' '.join([group, *words])}`.")
        name, listed, rest = super().resolve_command(ctx, args)
        return name, _loaded(str(name)) if listed else None, rest


def _version(show_version: bool) -> None:
    if show_version:
        number = tool_version()
        finish(f"moeprune {number}", {"version": number})
        raise typer.Exit


cli = typer.Typer(
    name="moeprune",
    cls=_Commands,
    help="Prune Mixture-of-Experts language models: calibrate once, look, prune, verify, export.",
    context_settings=_HELP,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)


_get_command = cache(typer.main.get_command)  # one process may run several commands


@cli.callback()
def _program(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    del version


for _step, _places in _LISTED.items():
    for _place, _help in _places.items():
        cli.command(_place.rpartition(":")[2], help=_help, rich_help_panel=_step)(lambda: None)


def main() -> None:
    """Entry point: usage errors exit 2, problems that a person can fix exit 1 with one line."""
    flags = _ANYWHERE.intersection(sys.argv)
    words = [word for word in sys.argv[1:] if word not in flags]
    debug = "--debug" in flags
    name = " ".join(words[: 2 if words and words[0] in _GROUPS else 1])  # such as `runs list`
    as_json = (
        "--json" in flags and not {"--help", "-h"} & set(words) and name not in ("app", "demo")
    )
    logging.basicConfig(level=logging.DEBUG if debug else logging.WARNING)
    speak_for_all()
    # Or torch's threads spin while they wait for one that another program keeps from its core.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    # Or the hub's client asks it for a list of programs that may run this one, and waits.
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    with speech(quiet="--quiet" in flags, as_json=as_json):
        _run(words, name, debug=debug)


def _run(words: Sequence[str], name: str, *, debug: bool) -> NoReturn:
    """Run a command; `name` is what messages call it."""
    try:
        code = _get_command(cli)(words, prog_name="moeprune", standalone_mode=False)
    except typer.TyperException as error:
        if debug:
            raise
        from app.cli.usage import usage_problem  # pydantic, which a right line does without

        _end(name, usage_problem(error), error, 2)
    except typer.Abort as error:
        _end(name, "Nothing was done.", error)
    except UserError as error:
        if debug:
            raise
        _end(name, str(error), error)
    except OSError as error:
        if debug:
            raise
        # A full disk, or a folder without the right to write, at a place not seen before.
        _end(name, f"{error.filename or 'The system says'}: {error.strerror or error}.", error)
    if not code:
        print_collected(name)
    raise SystemExit(code or 0)


# What a person or a file says is repeated in messages, as far as one can read it.
_LONG_WORD = re.compile(r"(\S{1000})\S{1000,}")


def _end(command: str, message: str, error: Exception, code: int = 1) -> NoReturn:
    message = _LONG_WORD.sub(r"\1...", message)
    speak_up(error)
    print_collected(command, message)
    if message:  # help, where a group is given no command
        err.print(message if message.startswith("Usage: ") else f"error: {message}")
    raise SystemExit(code) from error
