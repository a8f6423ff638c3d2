"""`python -m tools.engines ENGINE...`: make the environments of engines, one each."""

import time
from typing import Annotated

import typer

from tools.engines.environments import ENGINES, make, place_of, python_of


def main(
    names: Annotated[
        list[str] | None, typer.Argument(help=f"Of {', '.join(ENGINES)}; without any: list them.")
    ] = None,
) -> None:
    """Make the environments of these engines, where they are not made yet."""
    for name in names or ():
        started = time.monotonic()
        made = make(name)
        said = f"made in {time.monotonic() - started:.0f} s" if made else "was there"
        typer.echo(f"{name}: {said}, {place_of(name)}")
    for name in () if names else ENGINES:
        typer.echo(f"{name}: {'ready' if python_of(name) else 'not made'}, {place_of(name)}")


if __name__ == "__main__":
    typer.run(main)
