"""Cached plans and sizes for the Plan and Export pages, of experts and neurons."""

from dataclasses import dataclass, replace

import pandas as pd

from analysis.errors import PlanError
from analysis.model.moe_model import MoEModel, is_expert_weight
from analysis.stats.manifest import NEURONS
from app.charts.schedules import with_tokens
from app.choices import SAME_SCORE
from app.literal import literal
from app.loaded import CurrentPlan, Loaded
from app.session.data import what_is_missing
from app.session.plan_state import NoPlan, imported_plan, sparsity_controls
from app.session.search_data import searched_plan
from pruning.plan.kept import check_cuttable, kept_widths
from pruning.plan.plan import PruningPlan, fit_plan
from pruning.plan.sizes import SizeReport, format_bytes, neuron_plan_sizes, size_report, width_sizes
from pruning.plan.tables import neuron_summary
from pruning.plan.widths import WidthChoice, WidthMode
from pruning.planning.choice import CountsError, check_counts, counts_text
from pruning.planning.ranking import Ranking, needs_sensitivity
from pruning.records.repair_files import if_here
from pruning.schedules import get_schedule
from pruning.spec.spec import PlanSpec
from pruning.surgery.width_sizes import WidthOption, width_option

# Largest weights that a page reads while the user waits: about a second.
MOST_BYTES_READ = 1 << 28


def current_plan(loaded: Loaded) -> CurrentPlan:
    """The plan of the imported file or the controls: one for all pages.

    Raises:
        PlanError: a repair that the file names has another content.
        NoPlan: the controls give none.
    """
    if (imported := imported_plan(loaded.model)) is not None:
        if_here(imported.plan, loaded.study.store.directories)
        return imported
    current, bits = plan_of_controls(loaded), loaded.choices.bits
    return replace(current, plan=replace(current.plan, bits=bits)) if bits else current


def plan_of_controls(loaded: Loaded) -> CurrentPlan:
    """The plan of the controls, in the checkpoint's own bits."""
    if loaded.choices.spec.by_neuron:
        return shown_neurons(loaded)
    if loaded.choices.search is not None:
        return searched_plan(loaded)
    return made_plan(loaded)


def check_statistics(loaded: Loaded) -> None:
    """Refuse a plan whose criterion lacks statistics."""
    missing: str | None = SAME_SCORE
    if loaded.choices.criterion is not None:
        missing = what_is_missing(loaded, loaded.choices.criterion)
    if missing is not None:
        raise NoPlan(missing)


def prepared(loaded: Loaded) -> Ranking:
    """The ranking of the controls, with token counts if there are any."""
    check_statistics(loaded)
    return with_tokens(loaded)


def made_plan(loaded: Loaded) -> CurrentPlan:
    """The plan of the chosen criterion with a schedule or manual counts."""
    check_statistics(loaded)
    study, spec, kept = loaded.study, loaded.choices.spec, loaded.choices.kept
    if get_schedule(spec.spread.schedule).reads_tokens and not loaded.runs:
        raise NoPlan(
            f"The {spec.spread.schedule} schedule counts routed tokens, and there is no "
            "calibration yet; start one on the Start page."
        )
    ranking = study.ranking(spec)
    if spec.spread.is_measured and ranking.sensitivity is None:
        raise NoPlan(literal(needs_sensitivity(ranking, spec)))
    if not kept:
        return CurrentPlan(study.plan_of(ranking), ranking)
    try:
        check_counts(loaded.model, kept, *loaded.budget)
    except CountsError as error:
        raise NoPlan(literal(error), _ways_out(error)) from error
    ranking = replace(ranking, spec=spec.changed(set=kept))
    return CurrentPlan(replace(study.plan_of(ranking), notes=()), ranking)


def lacks_statistics(loaded: Loaded) -> bool:
    """Whether a chosen corpus lacks the neuron statistics of the criterion."""
    if loaded.choices.ranking_criterion.source != "routed":
        return False
    used = [run for corpus, run in loaded.runs.items() if loaded.weights[corpus] > 0]
    return not used or any(NEURONS not in run.manifest.files for run in used)


def check_page_reads(loaded: Loaded, spec: PlanSpec) -> None:
    """Check that the model's neurons can be pruned, and fast enough for a page."""
    check_cuttable(loaded.model)
    items = (item for located in loaded.model.located.values() for item in located)
    nbytes = sum(item.entry.nbytes for item in items if is_expert_weight(item.slot))
    if loaded.choices.ranking_criterion.source == "weights" and nbytes > MOST_BYTES_READ:
        command = loaded.study.request(spec).command()
        raise PlanError(
            f"{loaded.choices.ranking_criterion.name} reads {format_bytes(nbytes)} of weights, "
            f"which a page does not wait for; run `{command}` and open plan.json here."
        )


def _ways_out(error: CountsError) -> dict[str, dict[str, str | int]]:
    """Buttons: the nearest valid counts, and the sparsity of the manual counts."""
    nearest = counts_text(error.nearest)
    ways: dict[str, dict[str, str | int]] = {f"Keep {nearest}": {"counts": nearest}}
    if error.percent is not None:
        ways[f"Set the sparsity to {error.percent}%"] = sparsity_controls(error.percent)
    return ways


def shown_neurons(loaded: Loaded) -> CurrentPlan:
    """The chosen plan of neurons; see `check_page_reads`."""
    if lacks_statistics(loaded):
        raise NoPlan(f"{loaded.choices.ranking_criterion.label} needs statistics of neurons.")
    spec = loaded.neuron_spec
    check_page_reads(loaded, spec)
    ranking = loaded.study.ranking(spec)
    if spec.spread.is_measured and ranking.sensitivity is None:
        raise NoPlan(literal(needs_sensitivity(ranking, spec)))
    return CurrentPlan(loaded.study.plan_of(ranking), ranking)


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


def neuron_sizes(loaded: Loaded, shown: CurrentPlan) -> NeuronSizes:
    """Sizes of a plan of neurons in every width mode."""
    ranking = None if shown.file else loaded.scores
    sizing = (loaded.model, shown.plan, loaded.choices.spec.budget.width_multiple_of, ranking)
    return loaded.study.cached(_neuron_sizes, *sizing)


def bytes_after(loaded: Loaded, shown: CurrentPlan) -> int:
    """Bytes of all tensors of the export; in fewer bits, of what evaluations simulate."""
    if not loaded.choices.spec.by_neuron:
        return loaded.study.sizes(shown.plan).bytes_after
    if shown.plan.named_bits:
        padded = loaded.study.cached(
            _padded, loaded.model, shown.plan, loaded.choices.spec.budget.widths
        )
        return loaded.study.sizes(padded).bytes_after
    table = neuron_sizes(loaded, shown).table
    row = table[table["mode"] == loaded.choices.spec.budget.width_mode].iloc[0]
    return loaded.model.checkpoint.nbytes if row["refused"] else int(row["disk"])


def _padded(model: MoEModel, plan: PruningPlan, choice: WidthChoice) -> PruningPlan:
    """A plan of neurons with as many more in each expert as its width mode stores on disk."""
    complete = fit_plan(plan, model)
    if choice.mode is WidthMode.RAGGED:
        return complete
    widths = width_sizes(model, kept_widths(complete.kept_neurons, complete.kept, model), choice)
    neurons = {
        layer: {expert: tuple(range(widths.widths[layer])) for expert in complete.kept[layer]}
        for layer in complete.kept_neurons
    }
    return replace(complete, kept_neurons=neurons)


def export_option(loaded: Loaded, plan: PruningPlan) -> WidthOption:
    """The export in the chosen width mode, with its bytes."""
    fitted = fit_plan(plan, loaded.model)
    return loaded.study.cached(
        width_option, loaded.model, fitted, loaded.choices.spec.budget.widths
    )
