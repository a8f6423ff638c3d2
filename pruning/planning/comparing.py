"""Two recipes compared: the request, its command lines, the numbers."""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from analysis.criteria import get_criterion
from analysis.ranking.compare import Comparison, Decision
from analysis.ranking.experts import saliency_grid
from pruning.planning.ranking import Selection
from pruning.requests.base import repeated, validated
from pruning.requests.plan import PlanRequest


@dataclass(frozen=True)
class CompareRequest:
    """Two recipes for one model."""

    a: PlanRequest
    b: PlanRequest

    def command(self, out: str = "comparison.csv") -> str:
        """The equivalent command line; it says of the second recipe only what differs."""
        return shlex.join(["moeprune", "compare", *self._words(), "-o", out])

    def plot_command(self, view: str, out: str, options: Sequence[str] = ()) -> str:
        """The command line that draws a figure of these recipes, with the figure's `options`."""
        return shlex.join(["moeprune", "plot", view, *self._words(), *options, "-o", out])

    def report_command(self, views: Sequence[str], out: str) -> str:
        """The command line that writes a report on these recipes."""
        chosen = repeated("--view", views)
        return shlex.join(["moeprune", "report", *self._words(), *chosen, "-o", out])

    def _words(self) -> list[str]:
        words = [self.a.model, *self.a.options()]
        words += ["--sparsity", self.a.sparsity, "--with-criterion", self.b.criterion]
        inherited = inherited_corpora(self.a, self.b.criterion)
        if self.b.corpora != inherited:
            words += repeated("--with-corpus", self.b.corpora)
        if self.b.gate != self.a.gate:
            words += ["--with-gate", self.b.gate]
        if self.b.sparsity != self.a.sparsity:
            words += ["--with-sparsity", self.b.sparsity]
        if self.a.stats_dir:
            words += ["--stats-dir", str(self.a.stats_dir)]
        return words


def inherited_corpora(first: PlanRequest, criterion: str) -> tuple[str, ...]:
    """The corpora of a second recipe that names none: the first one's, if it reads any."""
    return first.corpora if get_criterion(criterion).source == "routed" else ()


def compare_request(first: Mapping[str, Any], second: Mapping[str, Any]) -> CompareRequest:
    """Two recipes from untrusted values; None in the second means as in the first."""
    given = {name: value for name, value in first.items() if value is not None}
    a: PlanRequest = validated(PlanRequest, given)
    values = given | {name: value for name, value in second.items() if value is not None}
    if second.get("corpora") is None:
        values["corpora"] = inherited_corpora(a, str(values["criterion"]))
    return CompareRequest(a, validated(PlanRequest, values))


def decision(selection: Selection) -> Decision:
    """Saliency and sparsity of a selection."""
    stats, request = selection.choice.stats, selection.request
    saliency = saliency_grid(selection.criterion, stats, selection.gate)
    return Decision(stats.grid, saliency, request.fraction)


def compare_selections(first: Selection, second: Selection) -> Comparison:
    """The numbers of a comparison."""
    return Comparison(decision(first), decision(second))
