"""Check: one question that was put to an export, and its answer."""

from collections.abc import Iterable
from dataclasses import dataclass

_SHOWN = 3


@dataclass(frozen=True, slots=True)
class Check:
    """One question that was put to an export.

    Args:
        name: what was checked, in a word or two.
        ok: whether it holds.
        detail: one line; where it does not hold, it names the file, tensor or layer.
    """

    name: str
    ok: bool
    detail: str


def check_that(name: str, problems: Iterable[str], fine: str) -> Check:
    """A check that holds if there are no problems; `fine` is then its detail."""
    found = list(problems)
    if not found:
        return Check(name, True, fine)
    more = f"; and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
    return Check(name, False, "; ".join(found[:_SHOWN]) + more)
