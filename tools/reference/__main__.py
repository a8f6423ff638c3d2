"""Writes the parts of the documentation that come from the code: `python -m tools.reference`."""

from pathlib import Path
from typing import Annotated

import typer

from tools.reference.pages import stale, write

ROOT = Path(__file__).parents[2]


def main(
    check: Annotated[
        bool, typer.Option("--check", help="Write nothing; end with 1 if a page is behind.")
    ] = False,
) -> None:
    """Rewrite every page, and name those that changed."""
    changed = stale(ROOT) if check else write(ROOT)
    for path in changed:
        typer.echo(f"{'behind the code:' if check else 'wrote'} {path.relative_to(ROOT)}")
    if check and changed:
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
