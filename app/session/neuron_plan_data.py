"""What the pages ask of plans of neurons: what they lack, the plan, and what it takes."""

from dataclasses import dataclass, replace

import pandas as pd

from analysis.errors import PlanError
from analysis.model import MoEModel, is_expert_weight
from analysis.stats.store import NEURONS
from app.charts.context import Context
from app.charts.neuron_cut import arena, neuron_request, ranking_of
from app.session.plan_state import imported_plan
from pruning.atoms.sizes import atom_sizes
from pruning.atoms.widths import WidthChoice, WidthMode
from pruning.plan import ATOMIC_GRANULARITY, PruningPlan, fit_plan
from pruning.plan_summary import neuron_summary
from pruning.planning.make import make_plan
from pruning.planning.neuron_plan import NeuronPlanChoice
from pruning.planning.neurons import check_cuttable
from pruning.planning.planning import CurrentPlan
from pruning.planning.ranking import Ranking
from pruning.requests.plan import PlanRequest
from pruning.sizes import SizeReport, format_bytes, size_report
from pruning.surgery.width_sizes import WidthOption, width_option

# Weights that a page reads while a person waits: about a second.
MOST_BYTES_READ = 1 << 28


def lacks_statistics(context: Context) -> bool:
    """Whether the criterion reads statistics of neurons that a chosen corpus has none of."""
    if context.ranking_criterion.source != "routed":
        return False
    used = [run for corpus, run in context.runs.items() if context.weights[corpus] > 0]
    return not used or any(NEURONS not in run.manifest.files for run in used)


def check_page_reads(context: Context, request: PlanRequest) -> None:
    """See that neurons can be cut out of the model, and that a page can wait for their numbers."""
    check_cuttable(context.model)
    items = (item for located in context.model.located.values() for item in located)
    nbytes = sum(item.entry.nbytes for item in items if is_expert_weight(item.slot))
    if context.ranking_criterion.source == "weights" and nbytes > MOST_BYTES_READ:
        raise PlanError(
            f"{request.criterion} reads {format_bytes(nbytes)} of weights, "
            f"which a page does not wait for; run `{request.command()}` and open plan.json here."
        )


def shown_neurons(context: Context, request: PlanRequest | None = None) -> CurrentPlan:
    """The plan that a request, or the context, asks for."""
    asked = request or neuron_request(context)
    check_page_reads(context, asked)
    ranking = ranking_of(context, asked)
    made = context.keep(make_plan, ranking, asked, arena(context, asked, asked.scope))
    return CurrentPlan(made.plan, made.notes, replace(ranking, request=asked))


def imported_file(context: Context) -> CurrentPlan | None:
    """The plan of neurons that was imported for this model, if it is the one on screen."""
    found = imported_plan(context.model)
    if found is None or found.plan.granularity != ATOMIC_GRANULARITY:
        return None
    return CurrentPlan(found.plan, file=found.file)


@dataclass(frozen=True, eq=False)
class NeuronSizes:
    """What a plan takes.

    Args:
        table: of `atom_sizes`.
        options: the widths of an export in each width mode, and who reads it; no bytes.
        layers: of `neuron_summary`.
        report: of the plan alone, without zeros; FLOPs by the routing of the runs that ranked.
    """

    table: pd.DataFrame
    options: tuple[WidthOption, ...]
    layers: pd.DataFrame
    report: SizeReport

    def refused(self, mode: str) -> str:
        """Why a width mode is not possible; empty where it is."""
        return next(each.refused for each in self.options if str(each.mode) == mode)


def neuron_sizes(
    model: MoEModel, plan: PruningPlan, multiple_of: int, ranking: Ranking | None
) -> NeuronSizes:
    """Sizes of a plan in every width mode; FLOPs by the routing of the runs that ranked."""
    routing, complete = ranking.routing if ranking else None, fit_plan(plan, model)
    choices = [WidthChoice(mode, multiple_of) for mode in WidthMode]
    return NeuronSizes(
        atom_sizes(model, plan, multiple_of, routing),
        tuple(width_option(model, complete, choice, weigh=False) for choice in choices),
        neuron_summary(plan, model),
        size_report(model, plan, routing),
    )


def export_option(context: Context, choice: NeuronPlanChoice, plan: PruningPlan) -> WidthOption:
    """What an export writes in the width mode that is chosen, with its bytes."""
    widths = WidthChoice(WidthMode(choice.width_mode), choice.width_multiple)
    complete = fit_plan(plan, context.model)
    return context.keep(width_option, context.model, complete, widths)
