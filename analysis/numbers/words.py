"""Numbers in words, and tables in plain cells, as commands and pages show them."""

from __future__ import annotations

from analysis.lazy import pd


def small(value: float) -> str:
    """A measured number with four decimals, a large one with four digits.

    One that decimals would show as 0 is in scientific form.
    """
    if abs(value) >= 1e6:
        return f"{value:.2e}"
    if abs(value) >= 10:
        return f"{value:,.{max(0, 4 - len(str(int(abs(value)))))}f}"
    return f"{value:.4f}" if abs(value) >= 0.001 else f"{value:.1e}" if value else "0"


def counted(count: int, what: str) -> str:
    """A count with its noun `what`: 1 path, 2 paths."""
    return f"{count:,} {what}{'s' * (count != 1)}"


def time_in_words(seconds: float) -> str:
    """A time as people say it: 40 s, 12 min, 3.0 h, 47 days."""
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    if seconds < 90 * 60:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 48 * 3600 else f"{seconds / 86400:.0f} days"


def plain_rows(table: pd.DataFrame) -> list[list[object]]:
    """The rows of a table; absent values are empty."""
    cells = table.astype(object).where(table.notna(), "")
    return [list(row) for row in cells.itertuples(index=False, name=None)]


def plain(value: object) -> object:
    """JSON form of other values: a number of numpy, else the text."""
    return value.item() if hasattr(value, "item") else str(value)
