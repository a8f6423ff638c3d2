"""Tables of Markdown."""

from collections.abc import Iterable, Sequence

__all__ = ["cell", "table"]


def cell(text: str) -> str:
    """Text as it may stand in a cell: on one line, its bars escaped."""
    return " ".join(text.split()).replace("|", "\\|")


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table; cells are taken as they are."""
    first, *rest = (" ".join(f"| {text}" if text else "|" for text in row) for row in (head, *rows))
    ruled = "".join("|---" for _ in head)
    return "\n".join([f"{first} |", f"{ruled}|", *(f"{line} |" for line in rest)])
