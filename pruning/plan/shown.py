"""Objects of the Python interface, as a console and a notebook show them."""

from collections.abc import Mapping
from html import escape
from typing import Final, TypeAlias

Facts: TypeAlias = Mapping[str, object]  # what is worth a line, in order


# Notebooks align cells right, which is for numbers; colours stay those of their theme.
_LEFT: Final = "style='text-align: left'"


class DisplayMixin:
    """What says in a few facts what it is."""

    @property
    def shown(self) -> Facts:
        """The facts."""
        raise NotImplementedError

    def __repr__(self) -> str:
        """`Kind(name='demo', layers=6)`: on one line whatever the names hold."""
        facts = ", ".join(f"{name}={value!r}" for name, value in self.shown.items())
        return f"{_name_of(self)}({facts})"

    def __str__(self) -> str:
        """The same line, where it is printed."""
        return repr(self)

    def _repr_html_(self) -> str:
        """A table of HTML with a line for each fact; names from files are escaped."""
        lines = "".join(
            f"<tr><th scope='row' {_LEFT}>{escape(name.replace('_', ' '))}</th>"
            f"<td {_LEFT}>{escape(_in_words(value))}</td></tr>"
            for name, value in self.shown.items()
        )
        caption = f"<caption {_LEFT}>{escape(_name_of(self))}</caption>"
        return f"<table>{caption}<tbody>{lines}</tbody></table>"


def _in_words(value: object) -> str:
    return ("no", "yes")[value] if isinstance(value, bool) else str(value)


def _name_of(shown: DisplayMixin) -> str:
    return type(shown).__name__.removesuffix("Record")
