"""What people call what a plan came from: corpora and schedules. One name for one thing."""

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
    """What ranked: one corpus, or a blend by its corpora; an even one of many by their number.

    `corpora` are as --corpus takes them.
    """
    if len(corpora) < 2:
        return "".join(corpora)
    weights = {parse_corpus_weight(corpus).weight for corpus in corpora}
    if len(weights) == 1 and len(corpora) > 2:
        return f"blend of {len(corpora)} corpora"
    return f"blend of {', '.join(corpora)}"


def schedule_words(schedule: str) -> str:
    """A plan's schedule, as its provenance names it; empty for the usual one, uniform."""
    return _SCHEDULES.get(schedule, schedule)
