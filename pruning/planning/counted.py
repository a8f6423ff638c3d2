"""What a budget leaves of each layer and of the whole, whichever experts stay: no ranking."""

from collections.abc import Sequence
from dataclasses import dataclass

from analysis.errors import PlanError
from analysis.model import MoEModel
from analysis.outline import without_weights
from analysis.widths import expert_widths
from pruning.allocation import Allocation
from pruning.budget import smaller_cut
from pruning.plan import PruningPlan, model_ref
from pruning.planning.make import spending_of
from pruning.requests.plan import PlanRequest
from pruning.schedules import Evidence, allocate, allocation_notes, read_counts
from pruning.sizes import SizeReport, size_report

SHARES = ("25%", "50%", "75%")


@dataclass(frozen=True, eq=False)
class Counted:
    """How many experts stay, and what that saves."""

    allocation: Allocation
    report: SizeReport
    notes: tuple[str, ...]  # for people, one line each


def count_plan(request: PlanRequest, model: MoEModel) -> Counted:
    """Counts and sizes of a plan of experts by a schedule that needs no ranking."""
    path = request.schedule_file
    seen = Evidence(counts=read_counts(path, model.layers) if path else None)
    spending = spending_of(request, model, seen)
    allocation = allocate(request.schedule, spending, seen)
    # Experts of a layer are alike in size, so any will do: the first of each group.
    kept = {
        layer.index: tuple(
            group * (layer.num_experts // layer.num_groups) + number
            for group in range(layer.num_groups)
            for number in range(keep // layer.num_groups)
        )
        for layer, keep in zip(allocation.layers, allocation.keep, strict=True)
    }
    plan = PruningPlan(model_ref(model), kept)
    notes = [*_caveats(model), *allocation_notes(request.schedule, spending, allocation, seen)]
    if (target := request.size_target) and request.is_even:
        notes.append(smaller_cut(model, target, spending.constraints, allocation.removed))
    return Counted(allocation, size_report(model, plan), tuple(filter(None, notes)))


def _caveats(model: MoEModel) -> Sequence[str]:
    found = without_weights(model)
    caveats = list(found.caveats if found else ())
    if any(len(set(widths)) > 1 for widths in expert_widths(model).values()):
        caveats.append("Experts of a layer differ in width; sizes are of the first ones.")
    return caveats


def uniform_cuts(model: MoEModel) -> list[tuple[str, Counted | None]]:
    """Sparsity -> its uniform plan, for SHARES; None where a router needs more experts."""
    cuts: list[tuple[str, Counted | None]] = []
    for share in SHARES:
        request = PlanRequest(model=model.name or ".", config_only=True, sparsity=share)
        try:
            cuts.append((share, count_plan(request, model)))
        except PlanError:
            cuts.append((share, None))
    return cuts
