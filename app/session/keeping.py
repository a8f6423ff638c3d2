"""Cache of computed results, by the cache keys of arguments."""

from collections.abc import Callable, Mapping
from fractions import Fraction
from functools import cache, wraps
from pathlib import Path
from typing import Any, Final, ParamSpec, TypeVar

import pandas as pd
import streamlit as st

P = ParamSpec("P")
T = TypeVar("T")
_MOST: Final = 128  # results of a function that is not marked by `most_results`


def remembered(function: Callable[P, T], /, *args: P.args, **named: P.kwargs) -> T:
    """The result of a function, cached for equal arguments; do not mutate it."""
    # As text: Streamlit takes 2 ms to hash the nested lists of one toggle, item by item.
    key = repr([*map(key_of, args), *named, *map(key_of, named.values())])
    result: T = _cached(function)(key=key, _args=args, _named=named)
    return result


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


@cache
def _cached(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function with a cache of its own; Streamlit hashes no argument with an underscore."""

    # Streamlit knows a cache by the name and the text of the function.
    @st.cache_resource(max_entries=getattr(function, "most_results", _MOST), show_spinner=False)
    @wraps(function)
    def result(*, key: Any, _args: tuple[Any, ...], _named: dict[str, Any]) -> Any:
        return function(*_args, **_named)

    return result
