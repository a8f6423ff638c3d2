"""`python -m tools.freeze`: take what must not change, and compare with it."""

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import typer

from tools.freeze.taking import take
from tools.freeze.values import KINDS, differences, read

app = typer.Typer(add_completion=False, no_args_is_help=True, help=__doc__)
_MOST_LINES = 40
Only = Annotated[list[str] | None, typer.Option(help=f"Kind of value: {', '.join(KINDS)}.")]


def _kinds(only: list[str] | None) -> list[str]:
    if unknown := [kind for kind in only or () if kind not in KINDS]:
        raise typer.BadParameter(f"{unknown[0]!r} is no kind; use {', '.join(KINDS)}")
    return only or list(KINDS)


@app.command("take")
def take_values(
    folder: Path,
    only: Only = None,
    *,
    in_full: Annotated[
        bool, typer.Option("--in-full", help="Also write the values, to look at changes.")
    ] = False,
) -> None:
    """Write the frozen values into a folder."""
    take(folder, _kinds(only), in_full=in_full)


@app.command()
def compare(folder: Path, only: Only = None) -> None:
    """Take the values anew and name those that differ from the folder's; then end with 1."""
    kinds = _kinds(only)
    if absent := [kind for kind in kinds if not (folder / f"{kind}.txt").is_file()]:
        raise typer.BadParameter(f"{folder} has no {absent[0]}.txt; make it with `take`")
    with TemporaryDirectory(prefix="freeze-") as name:
        taken = Path(name)
        take(taken, kinds)
        changes = [
            f"{kind}: {value}: {change}"
            for kind in kinds
            for value, change in differences(read(folder, kind), read(taken, kind))
        ]
        count = sum(len(read(taken, kind)) for kind in kinds)
    for change in changes[:_MOST_LINES]:
        typer.echo(change)
    if changes:
        rest = f", {_MOST_LINES} of them shown" if len(changes) > _MOST_LINES else ""
        typer.echo(f"{len(changes)} of {count} values differ{rest}")
        raise typer.Exit(1)
    typer.echo(f"{count} values are as frozen")


if __name__ == "__main__":
    app()
