"""Names for people of the corpora and schedules behind a plan."""

from collections.abc import Sequence
from typing import Final

from analysis.stats.choose import parse_corpus_weight

_SCHEDULES: Final = {
    "uniform": "",
    "neurons by global": "neurons global",
    "neurons by layer": "neurons per layer",
    "neurons by expert": "neurons per expert",
}


def corpora_words(corpora: Sequence[str]) -> str:
    """One corpus or a blend, for people; an even blend of many by their number.

    `corpora` are as --corpus takes them.
    """
    if len(corpora) < 2:
        return "".join(corpora)
    weights = {parse_corpus_weight(corpus).weight for corpus in corpora}
    if len(weights) == 1 and len(corpora) > 2:
        return f"blend of {len(corpora)} corpora"
    return f"blend of {', '.join(corpora)}"


def schedule_words(schedule: str) -> str:
    """A plan's schedule for people; empty for the default, uniform."""
    return _SCHEDULES.get(schedule, schedule)
