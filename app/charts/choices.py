"""Options of single charts besides the recipe: paths and results."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from analysis.criteria.pathfinder import DEFAULT_PATHS
from analysis.ranking.trajectory import PAPER, Weighing
from analysis.sparsity import parse_sparsity

if TYPE_CHECKING:
    import pandas as pd

    from pruning.requests.ranking import PlotRequest


@dataclass(frozen=True, slots=True)
class PathChoice:
    """Which paths are followed (MoE Pathfinder)."""

    count: int = DEFAULT_PATHS  # of each sample, the paper's m
    weighing: Weighing = PAPER  # what weighs a path
    clusters: int | None = None  # representative samples of each corpus; None: all of them

    @property
    def cache_key(self) -> str:
        """All of it."""
        return repr(self)

    def options(self) -> tuple[str, ...]:
        """The options of `moeprune paths` and `moeprune plot paths`."""
        words = ["--top-m", str(self.count)]
        if self.weighing.parts != PAPER.parts:
            words += ["--weights", self.weighing.parts]
        if self.weighing.steps != PAPER.steps:
            words += ["--transitions", self.weighing.steps]
        if self.clusters:
            words += ["--clusters", str(self.clusters)]
        return tuple(words)


@dataclass(frozen=True, eq=False)
class ResultChoice:
    """Which results charts of records show; empty or None is the default."""

    table: pd.DataFrame | None = None  # the results of the model, if already read
    measure: str = ""  # one of MEASURES
    corpus: str = ""  # evaluation corpus
    against: str = "removed"  # a key of `evaluation_curves.AXES`
    lit: Collection[str] | None = None  # highlighted series
    draw: str = ""  # of hidden states; see `draws_of`
    way: str = ""  # benchmark tool and settings
    removed: float | None = None  # sparsity of benchmarked candidates; ALL_SHARES: any

    @classmethod
    def asked(cls, request: PlotRequest) -> ResultChoice:
        """The results that a command line asks for; the inverse of `result_words`."""
        share = None
        if request.at is not None:
            share = ALL_SHARES if request.at == EVERY else float(parse_sparsity(request.at))
        return cls(
            measure=request.measure or "",
            corpus=request.evaluated_on or "",
            against=request.against,
            lit=request.lines or None,
            draw=request.draw or "",
            way=request.way or "",
            removed=share,
        )


def result_words(**options: str | None) -> tuple[str, ...]:
    """Options of `moeprune plot` with these values; None for those at their defaults."""
    pairs = [(f"--{name.replace('_', '-')}", value) for name, value in options.items()]
    return tuple(word for flag, value in pairs if value is not None for word in (flag, value))


def unless(value: str, usual: str) -> str | None:
    """A value that is not the usual one."""
    return None if value == usual else value


ALL_SHARES: Final = -1.0
EVERY: Final = "all"  # ALL_SHARES on the command line
USUAL_PATHS: Final = PathChoice()
USUAL_RESULTS: Final = ResultChoice()
