"""What a cache of results must know of values and functions; the cache itself is the dashboard's.

Arguments of cached functions have a property `cache_key`: plain values that say what it is.
"""

from collections.abc import Callable
from functools import cached_property
from itertools import count
from typing import Any, ParamSpec, Protocol, TypeVar

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
