"""Cached plans and sizes for the Plan and Export pages, of experts and neurons."""

from dataclasses import dataclass, replace

import pandas as pd

from analysis.errors import PlanError
from analysis.model import MoEModel, is_expert_weight
from analysis.stats.store import NEURONS
from app.charts.context import RANKS_NOTHING, Context
from app.charts.neuron_cut import arena, measured_ranking, neuron_request, ranking_of
from app.charts.schedules import selection_of, spending_of
from app.literal import literal
from app.session.data import what_is_missing
from app.session.plan_state import NoPlan, imported_plan, sparsity_controls
from app.session.search_data import searched_plan
from pruning.allocation import Allocation
from pruning.neurons.kept import check_cuttable
from pruning.neurons.widths import WidthChoice, WidthMode
from pruning.plan import PruningPlan, fit_plan
from pruning.plan_tables import neuron_summary
from pruning.planning.choice import CountsError, counts_text, hand_counts
from pruning.planning.make import CurrentPlan, make_plan
from pruning.planning.ranking import Ranking, Selection, needs_sensitivity
from pruning.requests.plan import SpecRequest
from pruning.schedules import MEASURED, budget_notes
from pruning.search.store import SEARCH
from pruning.sizes import SizeReport, format_bytes, neuron_plan_sizes, size_report
from pruning.spec import FREQUENCY
from pruning.surgery.width_sizes import WidthOption, width_option

# Largest weights that a page reads while the user waits: about a second.
MOST_BYTES_READ = 1 << 28


def current_plan(context: Context) -> CurrentPlan:
    """The plan of the imported file or the controls: one for all pages."""
    if (imported := imported_plan(context.model)) is not None:
        return imported
    if context.by_neuron:
        return shown_neurons(context)
    if context.schedule.name == SEARCH:
        return searched_plan(context)
    return made_plan(context)


def prepared(context: Context) -> Selection:
    """The statistics of the context."""
    missing: str | None = RANKS_NOTHING
    if context.criterion is not None:
        missing = what_is_missing(context, context.criterion)
    if missing is not None:
        raise NoPlan(missing)
    return selection_of(context)


def made_plan(context: Context) -> CurrentPlan:
    """The plan of a context's criterion with a schedule or manual counts."""
    ready, spec, choice = prepared(context), context.spec, context.schedule
    spending, kept = spending_of(context), None
    try:
        if choice.by_hand:
            kept = hand_counts(context.model, choice.counts, spending)
    except CountsError as error:
        raise NoPlan(literal(error), _ways_out(error)) from error
    if choice.name == FREQUENCY and ready.tokens is None:
        raise NoPlan(
            "The frequency schedule counts routed tokens, and there is no calibration yet; start "
            "one on the Start page."
        )
    if choice.name == MEASURED and ready.sensitivity is None:
        raise NoPlan(literal(needs_sensitivity(ready, spec)))
    if kept is not None:
        spec = spec.changed(set=kept)
    plan = context.keep(make_plan, ready, spec).plan
    notes: tuple[str, ...] = ()
    if kept is None:
        keep = tuple(len(plan.kept[layer.index]) for layer in spending.layers)
        allocation = Allocation(spending.layers, keep)
        notes = budget_notes(spec.spread.schedule, spending, allocation, ready.evidence)
    return CurrentPlan(plan, notes, replace(ready, request=context.request_for(spec)))


def sizes_of(context: Context, plan: PruningPlan) -> SizeReport:
    """Sizes before and after a plan."""
    return context.keep(size_report, context.model, plan)


def lacks_statistics(context: Context) -> bool:
    """Whether a chosen corpus lacks the neuron statistics of the criterion."""
    if context.ranking_criterion.source != "routed":
        return False
    used = [run for corpus, run in context.runs.items() if context.weights[corpus] > 0]
    return not used or any(NEURONS not in run.manifest.files for run in used)


def check_page_reads(context: Context, request: SpecRequest) -> None:
    """Check that the model's neurons can be pruned, and fast enough for a page."""
    check_cuttable(context.model)
    items = (item for located in context.model.located.values() for item in located)
    nbytes = sum(item.entry.nbytes for item in items if is_expert_weight(item.slot))
    if context.ranking_criterion.source == "weights" and nbytes > MOST_BYTES_READ:
        raise PlanError(
            f"{context.ranking_criterion.name} reads {format_bytes(nbytes)} of weights, "
            f"which a page does not wait for; run `{request.command()}` and open plan.json here."
        )


def _ways_out(error: CountsError) -> dict[str, dict[str, str | int]]:
    """Buttons: the nearest valid counts, and the sparsity of the manual counts."""
    nearest = counts_text(error.nearest)
    ways: dict[str, dict[str, str | int]] = {f"Keep {nearest}": {"counts": nearest}}
    if error.percent is not None:
        ways[f"Set the sparsity to {error.percent}%"] = sparsity_controls(error.percent)
    return ways


def shown_neurons(context: Context) -> CurrentPlan:
    """The plan of neurons of the context; see `check_page_reads`."""
    if lacks_statistics(context):
        raise NoPlan(f"{context.ranking_criterion.label} needs statistics of neurons.")
    asked = neuron_request(context)
    check_page_reads(context, asked)
    spread = asked.plan.spread
    ranking = (measured_ranking if spread.is_measured else ranking_of)(context, asked)
    ranking = replace(ranking, request=asked)
    if spread.is_measured and ranking.sensitivity is None:
        raise NoPlan(literal(needs_sensitivity(ranking, asked.plan)))
    decision = context.keep(make_plan, ranking, asked.plan, arena(context, asked, spread.scope))
    return CurrentPlan(decision.plan, decision.notes, ranking)


@dataclass(frozen=True, eq=False)
class NeuronSizes:
    """Sizes of a plan of neurons."""

    table: pd.DataFrame  # of `neuron_plan_sizes`
    # Widths and compatibility of an export in each width mode; no bytes.
    options: tuple[WidthOption, ...]
    layers: pd.DataFrame  # of `neuron_summary`
    # Of the plan without padding; FLOPs by the routing of the runs that ranked.
    report: SizeReport


def _neuron_sizes(
    model: MoEModel, plan: PruningPlan, multiple_of: int, ranking: Ranking | None
) -> NeuronSizes:
    routing, complete = ranking.routing if ranking else None, fit_plan(plan, model)
    choices = [WidthChoice(mode, multiple_of) for mode in WidthMode]
    return NeuronSizes(
        neuron_plan_sizes(model, plan, multiple_of, routing),
        tuple(width_option(model, complete, choice, weigh=False) for choice in choices),
        neuron_summary(plan, model),
        size_report(model, plan, routing),
    )


def neuron_sizes(context: Context, shown: CurrentPlan) -> NeuronSizes:
    """Sizes of a plan of neurons in every width mode."""
    ranking = None if shown.file else ranking_of(context, neuron_request(context))
    sizing = (context.model, shown.plan, context.spec.budget.width_multiple_of, ranking)
    return context.keep(_neuron_sizes, *sizing)


def bytes_after(context: Context, shown: CurrentPlan) -> int:
    """Bytes of all tensors of the export."""
    if not context.by_neuron:
        return sizes_of(context, shown.plan).bytes_after
    table = neuron_sizes(context, shown).table
    row = table[table["mode"] == context.spec.budget.width_mode].iloc[0]
    return context.model.checkpoint.nbytes if row["refused"] else int(row["disk"])


def export_option(context: Context, plan: PruningPlan) -> WidthOption:
    """The export in the chosen width mode, with its bytes."""
    fitted = fit_plan(plan, context.model)
    return context.keep(width_option, context.model, fitted, context.spec.budget.widths)
