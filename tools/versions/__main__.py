"""`python -m tools.versions`: run the tests in environments of other versions."""

import time
from typing import Annotated

import typer

from tools.versions.beside import BESIDE, PYTHONS, resolve
from tools.versions.environments import ENVIRONMENTS, NoInterpreterError, make, run_tests

app = typer.Typer(no_args_is_help=True, add_completion=False)


@app.command()
def test(
    names: Annotated[list[str], typer.Argument(help=f"Of {', '.join(ENVIRONMENTS)}.")],
    processes: Annotated[int, typer.Option("-n", help="Processes of pytest.")] = 2,
    at_hand: Annotated[
        bool, typer.Option("--at-hand", help="Pass over a Python not here.")
    ] = False,
) -> None:
    """Make these environments anew and run their tests; stops with 1 if a test fails."""
    failed = []
    for name in names:
        started = time.monotonic()
        try:
            python = make(name)
        except NoInterpreterError as error:
            if not at_hand:
                raise
            typer.echo(f"+ {name}: left out; {error}")
            continue
        typer.echo(f"+ {name}: made in {time.monotonic() - started:.0f} s")
        if run_tests(name, python, ("-n", str(processes))):
            failed.append(name)
    if failed:
        typer.echo(f"tests failed in {', '.join(failed)}", err=True)
        raise typer.Exit(1)


@app.command()
def beside() -> None:
    """Resolve programs that people use beside this one; stops with 1 if one does not fit."""
    found = [resolve(program, python) for program in BESIDE for python in PYTHONS]
    for resolution in found:
        typer.echo(resolution.line())
    if not all(resolution.versions for resolution in found):
        raise typer.Exit(1)


if __name__ == "__main__":
    app()
