"""Options of single charts besides the recipe: paths and results."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from analysis.criteria.pathfinder import DEFAULT_PATHS
from analysis.ranking.trajectory import PAPER, Weighing

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, slots=True)
class PathChoice:
    """Which paths are followed (MoE Pathfinder)."""

    count: int = DEFAULT_PATHS  # of each sample, the paper's m
    weighing: Weighing = PAPER  # what weighs a path
    clusters: int | None = None  # representative samples of each corpus; None: all of them

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

    table: "pd.DataFrame | None" = None  # the results of the model, if already read
    measure: str = ""  # one of MEASURES
    corpus: str = ""  # evaluation corpus
    against: str = "removed"  # a key of `evaluation_curves.AXES`
    lit: Collection[str] | None = None  # highlighted series
    draw: str = ""  # of hidden states; see `draws_of`
    way: str = ""  # benchmark tool and settings
    removed: float | None = None  # sparsity of benchmarked candidates; ALL_SHARES: any


ALL_SHARES: Final = -1.0
USUAL_PATHS: Final = PathChoice()
USUAL_RESULTS: Final = ResultChoice()
