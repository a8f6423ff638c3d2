"""Two plans compared: their specs, the command lines, the numbers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from analysis.criteria import get_criterion
from analysis.errors import PlanError
from analysis.model.moe_model import MoEModel
from analysis.numbers.sparsity import as_percent
from analysis.ranking.compare import CriterionDecision
from analysis.ranking.experts import saliency_grid
from pruning.plan.plan import EXPERT_GRANULARITY, NEURON_GRANULARITY, PruningPlan, fit_plan
from pruning.plan.plan_file import plan_from_dict
from pruning.planning.ranking import Ranking
from pruning.requests.plan import SpecRequest
from pruning.requests.ranking import SecondRequest
from pruning.spec.base import command_line, option_words, repeated
from pruning.spec.spec import BUDGETS, PlanSpec, SpreadSpec, spec_of


@dataclass(frozen=True)
class SpecPair:
    """Two plans of one model, compared."""

    a: SpecRequest
    b: SpecRequest
    b_file: str = ""  # that holds the second plan, if it is whole and inherits nothing

    def command(self, out: str = "comparison.csv") -> str:
        """The equivalent command line; it says of the second plan only what differs."""
        return command_line("compare", *self._words(), "-o", out)

    def plot_command(
        self, view: str, out: str, options: Sequence[str] = (), *, of_both: bool = True
    ) -> str:
        """The command line that draws a figure, with its `options`, of both plans or the first."""
        words = self._words() if of_both else self._first()
        return command_line("plot", view, *words, *options, "-o", out)

    def report_command(self, views: Sequence[str], out: str) -> str:
        """The command line that writes a report on these plans."""
        return command_line("report", *self._words(), *repeated("--view", views), "-o", out)

    def _words(self) -> list[str]:
        return [*self._first(), *self._second()]

    def _first(self) -> list[str]:
        return [self.a.model, *option_words(self.a)]

    def _second(self) -> list[str]:
        if self.b_file:
            return ["--with-plan", self.b_file]
        first, second = self.a.plan, self.b.plan
        words = ["--with-criterion", second.ranking.criterion]
        if second.ranking.corpora != inherited_corpora(first, second.ranking.criterion):
            words += repeated("--with-calibrated-on", second.ranking.corpora)
        if second.ranking.gate != first.ranking.gate:
            words += ["--with-gate", second.ranking.gate]
        if second.budget.sparsity not in (None, first.budget.sparsity):
            words += ["--with-sparsity", second.budget.sparsity]
        return words


def inherited_corpora(first: PlanSpec, criterion: str) -> tuple[str, ...]:
    """The corpora of a second plan that names none: the first one's, if it reads any."""
    return first.ranking.corpora if get_criterion(criterion).source == "routed" else ()


def second_spec(first: PlanSpec, request: SecondRequest) -> PlanSpec:
    """The plan to compare another one with, which inherits what it does not say.

    Of a plan of neurons only the share: the second removes whole experts.
    """
    criterion, budget = request.with_criterion or first.ranking.criterion, first.budget.amounts
    values: dict[str, Any] = {
        "criterion": criterion,
        "corpora": request.with_corpora or inherited_corpora(first, criterion),
        "gate": request.with_gate or first.ranking.gate,
        "runs": (),
    }
    if request.with_sparsity:
        budget = {"sparsity": request.with_sparsity}
        values |= {"schedule": "uniform", "schedule_file": None} if _has_file(first) else {}
    elif not (budget or _has_file(first)):
        budget = {"sparsity": "0"}
    if first.by_neuron:
        return spec_of(**values, **budget, target_dtype=first.budget.target_dtype)
    return first.changed(**values, **dict.fromkeys(BUDGETS) | budget)


def _has_file(spec: PlanSpec) -> bool:
    return spec.spread.schedule_file is not None


def first_of(request: SecondRequest, first: PlanSpec) -> SpecRequest:
    """The plan that a request compares another one with."""
    return SpecRequest(
        model=request.model, revision=request.revision, plan=first, stats_dir=request.stats_dir
    )


def pair_of(request: SecondRequest, first: PlanSpec) -> SpecPair:
    """A plan, and the one that the options of a request ask for; a file is no option of these."""
    a = first_of(request, first)
    return SpecPair(a, a.model_copy(update={"plan": second_spec(first, request)}))


def check_alike(granularity: str, second: PruningPlan) -> None:
    """Refuse plans of which one removes neurons and the other whole experts."""
    if second.granularity != granularity:
        words = {NEURON_GRANULARITY: "neurons", EXPERT_GRANULARITY: "whole experts"}
        raise PlanError(
            f"The first plan removes {words[granularity]}, and the second, "
            f"{second.digest[:8]}, {words[second.granularity]}; two plans of one granularity are "
            "compared."
        )


def plan_held(content: Mapping[str, Any], model: MoEModel) -> PruningPlan:
    """The plan of the model that the content of a plan.json holds."""
    return fit_plan(plan_from_dict(content), model)


def asked_of(plan: PruningPlan, model: MoEModel) -> PlanSpec:
    """What was asked of a plan; counts that came from a file, as the sparsity that they have."""
    spec = PlanSpec.recorded(plan.provenance.spec)
    if spec.spread.schedule_file is None:
        return spec
    removed = model.num_experts - sum(map(len, fit_plan(plan, model).kept.values()))
    share = as_percent(removed, model.num_experts)
    return spec.changed(schedule="uniform", schedule_file=None, sparsity=share, remove=None)


def is_ordered(plan: PruningPlan) -> bool:
    """Whether it says which criterion ordered its experts, as the second of two must."""
    ranking = plan.provenance.spec.get("ranking")
    return isinstance(ranking, Mapping) and bool(ranking.get("criterion"))


def order_asked_of(plan: PruningPlan, model: MoEModel) -> PlanSpec:
    """`asked_of` a plan whose experts are compared; refuses one that no criterion ordered."""
    if not is_ordered(plan):
        raise PlanError(
            f"The second plan, {plan.digest[:8]}, does not say which criterion ordered its "
            "experts; give one that `moeprune plan --criterion` made."
        )
    return asked_of(plan, model)


def with_counts_of(plan: PruningPlan, pair: SpecPair) -> SpecPair:
    """The pair, the second with the first one's counts if its order was measured for them."""
    if not pair.a.plan.spread.is_measured:
        return pair
    limits = pair.b.plan.limits.model_copy(
        update={"set": {layer: len(ids) for layer, ids in plan.kept.items()}}
    )
    spec = pair.b.plan.model_copy(update={"spread": SpreadSpec(), "limits": limits})
    return SpecPair(pair.a, pair.b.model_copy(update={"plan": spec}))


def decision(ranking: Ranking, plan: PruningPlan) -> CriterionDecision:
    """Saliency of a ranking, and what a plan of it prunes."""
    if ranking.by_neuron:
        raise PlanError(
            "This plan removes neurons, and those are compared with another plan's: name a plan "
            "of neurons with --with-plan, or use --granularity expert."
        )
    stats = ranking.choice.stats
    saliency = saliency_grid(ranking.criterion, stats, ranking.gate)
    pruned = stats.grid.present.copy()
    for row, layer in enumerate(stats.grid.layers):
        pruned[row, list(plan.kept[layer.index])] = False
    return CriterionDecision(stats.grid, saliency, pruned)
