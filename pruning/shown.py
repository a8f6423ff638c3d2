"""Objects of the Python interface, as a console and a notebook show them."""

from collections.abc import Mapping
from html import escape
from typing import TypeAlias

Facts: TypeAlias = Mapping[str, object]  # what is worth a line, in order


def one_line(kind: str, facts: Facts) -> str:
    """`Kind(name='demo', layers=6)`: on one line whatever the names hold."""
    return f"{kind}({', '.join(f'{name}={value!r}' for name, value in facts.items())})"


def as_table(kind: str, facts: Facts) -> str:
    """A table of HTML with a line for each fact; names from files are escaped."""
    lines = "".join(
        f"<tr><th scope='row'>{escape(name.replace('_', ' '))}</th>"
        f"<td>{escape(str(value))}</td></tr>"
        for name, value in facts.items()
    )
    return f"<table><caption>{escape(kind)}</caption><tbody>{lines}</tbody></table>"
