"""Two plans compared: their specs, the command lines, the numbers."""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from analysis.criteria import get_criterion
from analysis.ranking.compare import Comparison, Decision
from analysis.ranking.experts import saliency_grid
from pruning.planning.make import evidence_of, spending_of
from pruning.planning.ranking import Selection
from pruning.requests.base import command_line, option_words, repeated
from pruning.requests.plan import SpecRequest
from pruning.requests.ranking import SecondRequest
from pruning.spec import PlanSpec, spec_of


@dataclass(frozen=True)
class SpecPair:
    """Two plans of one model, compared."""

    a: SpecRequest
    b: SpecRequest

    def command(self, out: str = "comparison.csv") -> str:
        """The equivalent command line; it says of the second plan only what differs."""
        words = option_words(self.a, only=COMPARED)
        return command_line("compare", self.a.model, *words, *self._second(), "-o", out)

    def plot_command(self, view: str, out: str, options: Sequence[str] = ()) -> str:
        """The command line that draws a figure of these plans, with the figure's `options`."""
        return command_line("plot", view, *self._words(), *options, "-o", out)

    def report_command(self, views: Sequence[str], out: str) -> str:
        """The command line that writes a report on these plans."""
        return command_line("report", *self._words(), *repeated("--view", views), "-o", out)

    def _words(self) -> list[str]:
        return [self.a.model, *option_words(self.a), *self._second()]

    def _second(self) -> list[str]:
        first, second = self.a.plan, self.b.plan
        words = ["--with-criterion", second.ranking.criterion]
        if second.ranking.corpora != inherited_corpora(first, second.ranking.criterion):
            words += repeated("--with-corpus", second.ranking.corpora)
        if second.ranking.gate != first.ranking.gate:
            words += ["--with-gate", second.ranking.gate]
        if second.budget.sparsity not in (None, first.budget.sparsity):
            words += ["--with-sparsity", second.budget.sparsity]
        return words


COMPARED = ("criterion", "corpora", "runs", "gate", "sparsity", "revision", "stats_dir")


def inherited_corpora(first: PlanSpec, criterion: str) -> tuple[str, ...]:
    """The corpora of a second plan that names none: the first one's, if it reads any."""
    return first.ranking.corpora if get_criterion(criterion).source == "routed" else ()


def second_spec(first: PlanSpec, request: SecondRequest) -> PlanSpec:
    """The plan to compare another one with, which inherits what it does not say."""
    criterion, budget = request.with_criterion, first.budget.amounts or {"sparsity": "0"}
    if request.with_sparsity:
        budget = {"sparsity": request.with_sparsity}
    return spec_of(
        criterion=criterion,
        corpora=request.with_corpora or inherited_corpora(first, criterion),
        gate=request.with_gate or first.ranking.gate,
        target_dtype=first.budget.target_dtype,
        **budget,
    )


def pair_of(request: SecondRequest, first: PlanSpec) -> SpecPair:
    """A plan, and the one that a request compares it with."""
    a = SpecRequest(
        model=request.model, revision=request.revision, plan=first, stats_dir=request.stats_dir
    )
    return SpecPair(a, a.model_copy(update={"plan": second_spec(first, request)}))


def decision(selection: Selection) -> Decision:
    """Saliency of a selection, and the share of every layer that its budget takes."""
    stats, spec, model = selection.choice.stats, selection.spec, selection.model
    saliency = saliency_grid(selection.criterion, stats, selection.gate)
    share = spec.budget.fraction
    if spec.budget.sparsity is None:
        budget = spending_of(spec, model, evidence_of(selection, spec)).budget
        share = Fraction(budget.total, model.num_experts)
    return Decision(stats.grid, saliency, share)


def compare_selections(first: Selection, second: Selection) -> Comparison:
    """The numbers of a comparison."""
    return Comparison(decision(first), decision(second))
