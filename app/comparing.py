"""A comparison of two recipes: what was asked for, the command line that asks it, the numbers."""

import shlex
from dataclasses import dataclass

from analysis.compare import Comparison, Decision
from analysis.criteria import get_criterion
from analysis.ranking import saliency_grid
from app.selection import Selection
from app.task_requests import SelectRequest


@dataclass(frozen=True)
class CompareRequest:
    """Two recipes for one model."""

    a: SelectRequest
    b: SelectRequest

    def command(self, out: str = "comparison.csv") -> str:
        """The equivalent command line; of the second recipe, only what differs."""
        words = ["moeprune", "compare", self.a.model, *self.a.options()]
        words += ["--sparsity", self.a.sparsity, "--with-criterion", self.b.criterion]
        inherited = inherited_corpora(self.a, self.b.criterion)
        if self.b.corpora != inherited:
            words += [word for corpus in self.b.corpora for word in ("--with-corpus", corpus)]
        if self.b.gate != self.a.gate:
            words += ["--with-gate", self.b.gate]
        if self.b.sparsity != self.a.sparsity:
            words += ["--with-sparsity", self.b.sparsity]
        if self.a.stats_dir:
            words += ["--stats-dir", str(self.a.stats_dir)]
        return shlex.join([*words, "-o", out])


def inherited_corpora(first: SelectRequest, criterion: str) -> tuple[str, ...]:
    """The texts of a second recipe that names none: the first one's, if its criterion reads any."""
    return first.corpora if get_criterion(criterion).source == "routed" else ()


def decision(selection: Selection) -> Decision:
    """What a selection says of every expert."""
    stats, request = selection.choice.stats, selection.request
    saliency = saliency_grid(selection.criterion, stats, request.gate)
    return Decision(stats.grid, saliency, request.fraction)


def compare_selections(first: Selection, second: Selection) -> Comparison:
    """The numbers of a comparison.

    Raises:
        StatsError: the selections are of different models.
    """
    return Comparison(decision(first), decision(second))
