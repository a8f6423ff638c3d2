"""What a budget leaves of each layer and of the whole, whichever experts stay: no ranking."""

from collections.abc import Sequence
from dataclasses import dataclass

from analysis.errors import PlanError
from analysis.model.moe_model import MoEModel
from analysis.model.outline import without_weights
from analysis.model.widths import expert_widths
from pruning.plan.budget import smaller_cut
from pruning.plan.dividing import parallel_note
from pruning.plan.plan import PruningPlan, model_ref, with_top_k
from pruning.plan.selection import Allocation
from pruning.plan.sizes import SizeReport, size_report
from pruning.planning.make import budget_of, experts_of
from pruning.schedules import allocate, allocation_notes
from pruning.schedules.counts import file_evidence
from pruning.spec.spec import PlanSpec, spec_of

SHARES = ("25%", "50%", "75%")


@dataclass(frozen=True, eq=False)
class CountPlan:
    """How many experts stay, and what that saves."""

    allocation: Allocation
    report: SizeReport
    notes: tuple[str, ...]  # for people, one line each


def count_plan(spec: PlanSpec, model: MoEModel) -> CountPlan:
    """Counts and sizes of a plan of experts by a schedule that needs no ranking."""
    evidence, schedule = (
        file_evidence(spec.spread.schedule_file, model.layers),
        spec.spread.schedule,
    )
    units = experts_of(spec, model)
    budget = budget_of(spec, units, model, evidence)
    allocation = allocate(schedule, units, budget, evidence)
    # Experts of a layer are alike in size, so any will do: the first of each group.
    kept = {
        layer.index: tuple(
            group * (layer.num_experts // layer.num_groups) + number
            for group in range(layer.num_groups)
            for number in range(keep // layer.num_groups)
        )
        for layer, keep in zip(allocation.layers, allocation.keep, strict=True)
    }
    plan = with_top_k(PruningPlan(model_ref(model), kept), model, spec.budget.top_k)
    notes = [*_caveats(model), *allocation_notes(schedule, units, budget, allocation, evidence)]
    if (target := spec.budget.size_target) and spec.is_even:
        notes.append(smaller_cut(model, target, units.limits, allocation.removed))
    notes.append(parallel_note(spec.parallel, units.limits, model))
    return CountPlan(allocation, size_report(model, plan), tuple(filter(None, notes)))


def _caveats(model: MoEModel) -> Sequence[str]:
    outline = without_weights(model)
    caveats = list(outline.caveats if outline else ())
    if any(len(set(widths)) > 1 for widths in expert_widths(model).values()):
        caveats.append("Experts of a layer differ in width; sizes are of the first ones.")
    return caveats


def uniform_cuts(model: MoEModel) -> list[tuple[str, CountPlan | None]]:
    """Sparsity -> its uniform plan, for SHARES; None where a router needs more experts."""
    cuts: list[tuple[str, CountPlan | None]] = []
    for share in SHARES:
        try:
            cuts.append((share, count_plan(spec_of(sparsity=share), model)))
        except PlanError:
            cuts.append((share, None))
    return cuts
