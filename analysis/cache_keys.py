"""What a cache of results must know of values and functions; the cache itself is the dashboard's.

Arguments of cached functions have a property `cache_key`: plain values that say what it is.
"""

from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from functools import cached_property
from itertools import count
from pathlib import Path
from typing import Any, ParamSpec, Protocol, TypeVar

from analysis.lazy import pd

Made = TypeVar("Made", bound=Callable[..., Any])
P = ParamSpec("P")
T = TypeVar("T")
_numbers = count()


class Cache(Protocol):
    """Calls a function, or returns its cached result for equal arguments."""

    def __call__(self, function: Callable[P, T], /, *args: P.args, **named: P.kwargs) -> T:
        """The result of the function."""


def uncached(function: Callable[P, T], /, *args: P.args, **named: P.kwargs) -> T:
    """Call a function without a cache, as commands do."""
    return function(*args, **named)


def cache_of_one_run() -> Cache:
    """A cache that ends with the command that makes it; do not mutate what it returns."""
    results: dict[tuple[object, str], Any] = {}

    def cached(function: Callable[P, T], /, *args: P.args, **named: P.kwargs) -> T:
        key = (function, key_of_call(args, named))
        if key not in results:
            results[key] = function(*args, **named)
        result: T = results[key]
        return result

    return cached


def key_of_call(args: Sequence[Any], named: Mapping[str, Any]) -> str:
    """A text that is equal for equal arguments."""
    return repr([*map(key_of, args), *named, *map(key_of, named.values())])


def key_of(value: Any) -> Any:
    """Plain values that are equal for equal arguments; a TypeError if a type has none."""
    match value:
        case None | str() | int() | float():
            return value
        case Fraction():
            return str(value)
        case pd.DataFrame():
            rows = pd.util.hash_pandas_object(value).to_numpy()
            return (*value.columns, rows.tobytes())
        case Path():
            return _file_key(value)
        case Mapping():
            return [(key_of(name), key_of(entry)) for name, entry in value.items()]
        case list() | tuple():
            return list(map(key_of, value))
    if not hasattr(value, "cache_key"):
        raise TypeError(f"{type(value).__name__} has no cache_key; see analysis/cache_keys.py")
    return value.cache_key


def _file_key(path: Path) -> tuple[object, ...]:
    """The current state of a file; only its path if it is gone."""
    try:
        state = path.stat()
    except OSError:
        return (str(path),)
    return (str(path), state.st_mtime_ns, state.st_size, state.st_ino)


class IdentityKey:
    """An immutable value with large tables, told apart by its number and not by its content."""

    @cached_property
    def cache_key(self) -> int:
        """A number that no other value has."""
        return next(_numbers)


def most_results(number: int) -> Callable[[Made], Made]:
    """Mark a function with large results: a cache has this many of them at most."""

    def mark(function: Made) -> Made:
        vars(function)["most_results"] = number
        return function

    return mark
