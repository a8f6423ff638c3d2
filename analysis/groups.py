"""Statistic groups: what a calibration collects, by the names that `--groups` takes."""

from collections.abc import Sequence
from typing import Literal, get_args

from analysis.errors import StatsError, unknown_name

Group = Literal["routed", "router", "damage"]
GROUPS: tuple[Group, ...] = get_args(Group)
# Named by the command line's contract already.
_PLANNED = ("dense", "gradient")


def parse_groups(text: str) -> tuple[Group, ...]:
    """Groups from names joined by commas, in the order of GROUPS; `routed` is always one of them.

    Raises:
        StatsError: an unknown name, or a group that this version does not have.
    """
    names = [name.strip().lower() for name in text.split(",") if name.strip()]
    for name in names:
        if name in _PLANNED:
            raise StatsError(
                f"The statistic group {name!r} is not there yet; choose from {', '.join(GROUPS)}."
            )
        if name not in GROUPS:
            raise StatsError(unknown_name("statistic group", name, GROUPS))
    return ordered(names)


def ordered(names: Sequence[str]) -> tuple[Group, ...]:
    """The groups among `names` in the order of GROUPS, with `routed`."""
    return tuple(group for group in GROUPS if group == "routed" or group in names)
