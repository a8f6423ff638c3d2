"""`moeprune`: the command line. Commands are thin; what they do lives in analysis and pruning."""

import logging
import sys
from typing import NoReturn

import typer

from analysis.errors import UserError
from app.commands.benchmark import benchmark
from app.commands.cache import runs
from app.commands.calibrate import calibrate
from app.commands.compare import compare
from app.commands.evaluate import evaluate
from app.commands.inspect import inspect
from app.commands.launch import speak_for_all, speak_up
from app.commands.mix import blend
from app.commands.model import weights
from app.commands.paths import paths
from app.commands.plan import plan
from app.commands.plans import plans
from app.commands.plot import plot, report
from app.commands.probe import ask, bins, variance
from app.commands.queue import jobs
from app.commands.rank import overlap, score
from app.commands.run import run
from app.commands.search import search
from app.commands.serve import app as app_command
from app.commands.serve import demo
from app.commands.ship import export, verify
from app.commands.sweep import sweep
from app.console import err

cli = typer.Typer(
    name="moeprune",
    help="Prune Mixture-of-Experts language models: calibrate once, look, prune, verify, export. "
    "Add --debug anywhere for the full trace of an error.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
_COMMANDS = (
    *(demo, inspect, calibrate, weights),
    *(score, overlap, compare, blend, plan, paths),
    *(search, evaluate, sweep, benchmark, variance, bins, ask),
    *(export, verify, run),
    *(plot, report),
)
for command in _COMMANDS:
    cli.command()(command)
cli.command("app")(app_command)
cli.add_typer(runs, name="runs")
cli.add_typer(plans, name="plans")
cli.add_typer(jobs, name="jobs")


def main() -> None:
    """Entry point: usage errors exit 2, problems that a person can fix exit 1 with one line."""
    debug = "--debug" in sys.argv
    sys.argv = [word for word in sys.argv if word != "--debug"]
    logging.basicConfig(level=logging.DEBUG if debug else logging.WARNING)
    speak_for_all()
    try:
        cli()
    except UserError as error:
        if debug:
            raise
        _end(str(error), error)
    except OSError as error:
        if debug:
            raise
        # A full disk, or a folder without the right to write, at a place not seen before.
        _end(f"{error.filename or 'The system says'}: {error.strerror or error}.", error)


def _end(message: str, error: Exception) -> NoReturn:
    speak_up(error)
    err.print(f"error: {message}", markup=False)
    raise SystemExit(1) from error


if __name__ == "__main__":
    main()
