"""Which paths are followed (MoE Pathfinder), as the chart of paths and its page ask."""

from dataclasses import dataclass
from typing import Final

from analysis.criteria.pathfinder import DEFAULT_PATHS
from analysis.ranking.trajectory import PAPER, Weighing


@dataclass(frozen=True, slots=True)
class PathChoice:
    """Which paths are followed.

    Args:
        count: of each sample, the paper's m.
        weighing: what weighs a path.
        clusters: representative samples of each text; None: all of them.
    """

    count: int = DEFAULT_PATHS
    weighing: Weighing = PAPER
    clusters: int | None = None

    def said(self) -> tuple[str, ...]:
        """What is chosen, as options of `moeprune paths` and `moeprune plot paths`."""
        words = ["--top-m", str(self.count)]
        if self.weighing.parts != PAPER.parts:
            words += ["--weights", self.weighing.parts]
        if self.weighing.steps != PAPER.steps:
            words += ["--transitions", self.weighing.steps]
        if self.clusters:
            words += ["--clusters", str(self.clusters)]
        return tuple(words)


USUAL_PATHS: Final = PathChoice()
