"""Parses JSON from outside; problems are ValueErrors with the reason."""

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from analysis.files.content import read_whole


def parse_json(text: str | bytes, **options: Any) -> Any:
    """The value of a JSON text, with options of `json.loads`; a ValueError if it is not JSON.

    Also refused are text that is not UTF-8, nesting too deep for the parser, and half of a
    surrogate pair, which cannot be written to files or terminals.
    """
    if not text.strip():
        raise ValueError("it is empty")
    try:
        value = json.loads(text, **options)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    except UnicodeDecodeError as error:
        raise ValueError(f"it is not UTF-8 text (byte {error.start})") from error
    except ValueError as error:
        if str(error).startswith("Exceeds the limit"):  # Python's words, on its own settings
            raise ValueError("it holds a number of thousands of digits") from error
        raise
    escape = rb"\ud" if isinstance(text, bytes) else r"\ud"
    if escape in text.lower():  # type: ignore[operator]  # both are of one kind
        try:
            json.dumps(value, ensure_ascii=False).encode()
        except UnicodeEncodeError as error:
            raise ValueError("it holds half of a surrogate pair") from error
    return value


def parse_json_once(text: str | bytes) -> Any:
    """As `parse_json`, but refuses duplicate names in an object: readers disagree on them."""
    return parse_json(text, object_pairs_hook=_unique_names)


def _unique_names(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) < len(pairs):
        ((twice, _),) = Counter(name for name, _ in pairs).most_common(1)
        raise ValueError(f"it holds {twice} twice")
    return values


def plain_json(value: Any) -> Any:
    """A value as it comes back from a JSON file: a tuple is a list."""
    return json.loads(json.dumps(value))


def object_of(file: Path) -> Mapping[str, Any]:
    """The JSON object of a file; empty if there is none to read, which whoever needs it says."""
    try:
        raw = parse_json(read_whole(file))
    except (OSError, ValueError):
        return {}
    return raw if isinstance(raw, dict) else {}
