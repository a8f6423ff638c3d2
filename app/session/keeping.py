"""Cache of computed results, by the cache keys of arguments."""

from collections.abc import Callable
from functools import cache, wraps
from typing import Any, Final, ParamSpec, TypeVar

import streamlit as st

from analysis.cache_keys import key_of_call

P = ParamSpec("P")
T = TypeVar("T")
_MOST: Final = 128  # results of a function that is not marked by `most_results`


def remembered(function: Callable[P, T], /, *args: P.args, **named: P.kwargs) -> T:
    """The result of a function, cached for equal arguments; do not mutate it."""
    # As text: Streamlit takes 2 ms to hash the nested lists of one toggle, item by item.
    result: T = _cached(function)(key=key_of_call(args, named), _args=args, _named=named)
    return result


@cache
def _cached(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function with a cache of its own; Streamlit hashes no argument with an underscore."""

    # Streamlit knows a cache by the name and the text of the function.
    @st.cache_resource(max_entries=getattr(function, "most_results", _MOST), show_spinner=False)
    @wraps(function)
    def result(*, key: Any, _args: tuple[Any, ...], _named: dict[str, Any]) -> Any:
        return function(*_args, **_named)

    return result
