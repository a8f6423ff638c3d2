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
from pruning.neurons.sizes import neuron_plan_sizes
from pruning.neurons.widths import WidthChoice, WidthMode
from pruning.plan import PruningPlan, fit_plan
from pruning.plan_tables import neuron_summary
from pruning.planning.choice import (
    CountsError,
    PlanChoice,
    counts_text,
    hand_counts,
    plan_request,
    shrink_sparsities,
)
from pruning.planning.make import CurrentPlan, make_plan
from pruning.planning.ranking import FREQUENCY, Ranking, Selection, needs_sensitivity
from pruning.requests.plan import PlanRequest
from pruning.schedules import MEASURED, budget_notes
from pruning.search.store import SEARCH
from pruning.sizes import SizeReport, format_bytes, size_report
from pruning.surgery.width_sizes import WidthOption, width_option

# Largest weights that a page reads while the user waits: about a second.
MOST_BYTES_READ = 1 << 28


def current_plan(context: Context) -> CurrentPlan:
    """The plan of the imported file or the controls: one for all pages."""
    if (imported := imported_plan(context.model)) is not None:
        return imported
    if context.plan.by_neuron:
        return shown_neurons(context)
    if context.plan.schedule == SEARCH:
        return searched_plan(context)
    return made_plan(context, context.plan)


def sparsity_of(context: Context) -> str:
    """The sparsity of experts that the slider and its unit ask for."""
    choice, percent = context.plan, context.sparsity_percent
    if choice.by_neuron or choice.unit != "bytes":
        return context.sparsity
    known = shrink_sparsities(context.model, choice.multiple_of)
    if percent not in known:
        raise PlanError(
            f"{context.model.name} cannot shrink by {percent}% where layers keep a multiple of "
            f"{choice.multiple_of}; the most that this page offers is {max(known, default=0)}%."
        )
    return known[percent]


def prepared(context: Context) -> Selection:
    """The statistics of the context."""
    missing: str | None = RANKS_NOTHING
    if context.criterion is not None:
        missing = what_is_missing(context, context.criterion)
    if missing is not None:
        raise NoPlan(missing)
    return selection_of(context)


def made_plan(context: Context, choice: PlanChoice) -> CurrentPlan:
    """The plan of a context's criterion with a schedule or manual counts."""
    ready = prepared(context)
    spending = spending_of(context, choice)
    try:
        kept = hand_counts(context.model, choice, spending) if choice.by_hand else None
    except CountsError as error:
        raise NoPlan(literal(error), _ways_out(error)) from error
    if choice.schedule == FREQUENCY and ready.tokens is None:
        raise NoPlan(
            "The frequency schedule counts routed tokens, and there is no calibration yet; start "
            "one on the Start page."
        )
    if choice.schedule == MEASURED and ready.sensitivity is None:
        raise NoPlan(literal(needs_sensitivity(ready.request)))
    base = context.request_by(context.ranking_criterion).model_dump()
    request = plan_request(choice, base, kept)
    if choice.schedule == FREQUENCY:
        request = request.model_copy(update={"corpora": context.corpora})
    plan = context.keep(make_plan, ready, request).plan
    notes: tuple[str, ...] = ()
    if kept is None:
        keep = tuple(len(plan.kept[layer.index]) for layer in spending.layers)
        allocation = Allocation(spending.layers, keep)
        notes = budget_notes(request.schedule, spending, allocation, ready.evidence)
    return CurrentPlan(plan, notes, replace(ready, request=request))


def sizes_of(context: Context, plan: PruningPlan) -> SizeReport:
    """Sizes before and after a plan."""
    return context.keep(size_report, context.model, plan)


def lacks_statistics(context: Context) -> bool:
    """Whether a chosen corpus lacks the neuron statistics of the criterion."""
    if context.ranking_criterion.source != "routed":
        return False
    used = [run for corpus, run in context.runs.items() if context.weights[corpus] > 0]
    return not used or any(NEURONS not in run.manifest.files for run in used)


def check_page_reads(context: Context, request: PlanRequest) -> None:
    """Check that the model's neurons can be pruned, and fast enough for a page."""
    check_cuttable(context.model)
    items = (item for located in context.model.located.values() for item in located)
    nbytes = sum(item.entry.nbytes for item in items if is_expert_weight(item.slot))
    if context.ranking_criterion.source == "weights" and nbytes > MOST_BYTES_READ:
        raise PlanError(
            f"{request.criterion} reads {format_bytes(nbytes)} of weights, "
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
    ranking = (measured_ranking if asked.is_measured else ranking_of)(context, asked)
    if asked.is_measured and ranking.sensitivity is None:
        raise NoPlan(literal(needs_sensitivity(asked)))
    made = context.keep(make_plan, ranking, asked, arena(context, asked, asked.scope))
    return CurrentPlan(made.plan, made.notes, replace(ranking, request=asked))


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
    sizing = (context.model, shown.plan, context.plan.width_multiple, ranking)
    return context.keep(_neuron_sizes, *sizing)


def bytes_after(context: Context, shown: CurrentPlan) -> int:
    """Bytes of all tensors of the export."""
    if not context.plan.by_neuron:
        return sizes_of(context, shown.plan).bytes_after
    table = neuron_sizes(context, shown).table
    row = table[table["mode"] == context.plan.width_mode].iloc[0]
    return context.model.checkpoint.nbytes if row["refused"] else int(row["disk"])


def export_option(context: Context, plan: PruningPlan) -> WidthOption:
    """The export in the chosen width mode, with its bytes."""
    choice = context.plan
    widths = WidthChoice(WidthMode(choice.width_mode), choice.width_multiple)
    return context.keep(width_option, context.model, fit_plan(plan, context.model), widths)
