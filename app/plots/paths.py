"""The chart of paths (MoE Pathfinder): in how many samples of each text they hold an expert."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import pandas as pd

from analysis.criteria.pathfinder import DEFAULT_PATHS
from analysis.ranking.trajectory import PAPER, Weighing, follow, representative_samples
from analysis.stats.samples import SampleStats
from app.charts.chart import Drawing
from app.figures import path_frequency


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


def path_table(stats: SampleStats, choice: PathChoice) -> pd.DataFrame:
    """Table `layer, expert, num_samples, path_weight, node_weight, rank, samples` of one text."""
    if choice.clusters is not None:
        stats = representative_samples(stats, choice.clusters)
    table = follow(stats, choice.count, choice.weighing).table(choice.count)
    return table.assign(samples=stats.num_samples)


def paths_chart(tables: Mapping[str, pd.DataFrame], choice: PathChoice, about: str) -> Drawing:
    """Which experts the heaviest paths pass through.

    Args:
        tables: of `path_table`, by corpus; at least one.
        choice: what they are made of.
        about: what made it.
    """
    counts = {corpus: int(table["samples"].iloc[0]) for corpus, table in tables.items()}
    together = pd.concat(
        [table.assign(corpus=corpus) for corpus, table in tables.items()], ignore_index=True
    )
    columns = ["corpus", *(column for column in together if column != "corpus")]
    return Drawing(
        "paths",
        lambda dark: path_frequency.path_frequency(together, counts, dark=dark),
        together[columns],
        path_frequency.describe(together, counts),
        about,
        choice.said() if choice != USUAL_PATHS else (),
    )
