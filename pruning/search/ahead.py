"""Work that begins before the result of earlier work is there. No torch."""

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import TypeVar

Item = TypeVar("Item")


def ahead_of(items: Iterable[Item], begin: Callable[[Item], None], count: int) -> Iterator[Item]:
    """Each item, once so many behind it have begun."""
    waiting = iter(items)
    begun: list[Item] = []
    while True:
        for item in islice(waiting, count + 1 - len(begun)):
            begin(item)
            begun.append(item)
        if not begun:
            return
        yield begun.pop(0)
