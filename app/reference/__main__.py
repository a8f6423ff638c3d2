"""Writes the parts of the documentation that come from the code: `python -m app.reference`."""

from pathlib import Path

import typer

from app.reference.pages import write

ROOT = Path(__file__).parents[2]


def main() -> None:
    """Write every page anew, and name those that changed."""
    for path in write(ROOT):
        typer.echo(f"wrote {path.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
