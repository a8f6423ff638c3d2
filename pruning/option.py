"""How a value that a person gives is named, explained and checked."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal

from pydantic import AfterValidator

from analysis.errors import UserError

# Headings in the help of commands with many options, in their order.
HEADINGS: Final = ("Ranking", "Budget", "Layers", "Constraints", "Neurons", "Corpora", "Machine")


@dataclass(frozen=True, slots=True)
class Option:
    """How the command line names and explains a value."""

    help: str = ""
    flags: tuple[str, ...] = ()  # such as `("--out", "-o")`; default: the field's name with dashes
    place: str = ""  # the name of a positional argument, such as MODEL
    # What stands for the value in help, such as FRACTION; default: its choices, or the flag's name.
    takes: str = ""
    # What a path must be: a "new" file in a folder that exists, an "existing" file, or a "folder",
    # which may be absent. A "corpus" may be a path, whose file must exist; a "plan" is one too, or
    # a folder with one, and the value is its content.
    file: Literal["", "new", "existing", "folder", "corpus", "plan"] = ""
    endings: tuple[str, ...] = ()  # allowed for a new file, such as `(".csv", ".parquet")`; or any
    of: Literal["", "expert", "neuron"] = ""  # the granularity of plans that has it; empty: both
    heading: str = ""  # one of HEADINGS; default: that of the field's name
    # A value as the words that it is read from, if it is kept as something else than a word.
    words: Callable[[Any], Iterable[str]] | None = None

    def values(self) -> dict[str, Any]:
        """The values that are given."""
        return {name: value for name, value in asdict(self).items() if value}


@contextmanager
def as_value_errors() -> Iterator[None]:
    """Turn a `UserError` into a ValueError, which pydantic collects."""
    try:
        yield
    except UserError as error:
        raise ValueError(str(error)) from error


def checked(parse: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """The function with a `UserError` turned into a ValueError, see `as_value_errors`."""

    def parsed(value: Any) -> Any:
        with as_value_errors():
            return parse(value)

    return parsed


def checked_by(parse: Callable[[Any], object]) -> AfterValidator:
    """Check a value with `parse`, but keep the value itself."""

    def check(value: Any) -> Any:
        with as_value_errors():
            parse(value)
        return value

    return AfterValidator(check)
