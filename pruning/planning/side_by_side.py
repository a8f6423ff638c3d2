"""Alternatives on one budget: all schedules of experts, all scopes of neurons."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from analysis.errors import PlanError
from analysis.lazy import pd
from analysis.model.moe_model import MoEModel
from analysis.numbers.sparsity import parse_sparsity
from pruning.measures.curves import Sensitivity
from pruning.plan.budget import Budget, sparsity_budget
from pruning.plan.expert_sizes import Routing, active_experts, expert_shapes, token_shares
from pruning.plan.plan import PruningPlan, keep_all, model_ref
from pruning.plan.selection import Allocation, kept_experts, select_experts, widths_left
from pruning.plan.sizes import weight_bytes
from pruning.plan.units import NeuronScope, Removed, Units
from pruning.planning.choice import SCOPES
from pruning.planning.make import budget_of, neurons_removed
from pruning.planning.ranking import Ranking
from pruning.schedules import MEASURED, SCHEDULES, SIDE_COLUMNS, Evidence, side_by_side
from pruning.search.store import SEARCH, KnownSearch
from pruning.spec.spec import PlanSpec

SIDE_TABLE_COLUMNS = (
    *("schedule", "kept", "fewest", "most", "layers changed", "overlap with uniform", "on disk"),
    "plan",
)


def searched_rows(known: Iterable[KnownSearch], removed: int, order: str) -> pd.DataFrame:
    """Table of SIDE_COLUMNS with the results of searches on one budget and one order of experts.

    `removed` is the number of experts, `order` is from `order_digest`.
    """
    rows = [
        (f"{SEARCH}:{search.search_id}", layer, kept, search.result.experts[layer] - kept)
        for search in known
        if (search.removed, search.order) == (removed, order)
        for layer, kept in search.kept.items()
    ]
    return pd.DataFrame(rows, columns=list(SIDE_COLUMNS))


def schedules_table(
    ranking: Ranking, units: Units, budget: Budget, searched: pd.DataFrame
) -> tuple[pd.DataFrame, pd.DataFrame, dict[str, str]]:
    """Every schedule on one budget: the summary, the counts, and why some are impossible.

    `searched` is from `searched_rows` and comes last. The summary has SIDE_TABLE_COLUMNS: experts
    kept in all, fewest and most in a layer, layers that differ from uniform, share of the pruned
    experts that uniform prunes as well, bytes of the weights, digest of the plan.
    """
    counts, refused = side_by_side(units, budget, ranking.evidence)
    counts = pd.concat([counts, searched], ignore_index=True) if len(searched) else counts
    plans = {}
    for name, rows in counts.groupby("schedule", sort=False):
        kept = dict(zip(rows["layer"].tolist(), rows["kept"].tolist(), strict=True))
        keep = tuple(int(kept[layer.index]) for layer in units.layers)
        allocation = Allocation(units.layers, keep)
        ref = model_ref(ranking.model)
        plans[str(name)] = select_experts(
            ranking.table, allocation, model=ref, constraints=units.limits
        )
    uniform, summary = plans.get("uniform"), []
    for name, plan in plans.items():
        numbers = [len(ids) for ids in plan.kept.values()]
        changed, overlap = None, float("nan")
        if uniform:
            changed = sum(len(ids) != len(uniform.kept[layer]) for layer, ids in plan.kept.items())
            overlap = _pruned_overlap(plan, uniform, ranking.model)
        size = weight_bytes(ranking.model, plan)
        spread = (sum(numbers), min(numbers), max(numbers))
        summary.append((name, *spread, changed, overlap, size, plan.digest))
    return pd.DataFrame(summary, columns=list(SIDE_TABLE_COLUMNS)), counts, refused


def _pruned_overlap(plan: PruningPlan, other: PruningPlan, model: MoEModel) -> float:
    """The share of experts pruned by `plan` that `other` prunes as well; NaN if it prunes none."""
    pruned = both = 0
    for layer in model.layers:
        removed_ids = set(range(layer.num_experts)).difference(plan.kept[layer.index])
        pruned += len(removed_ids)
        both += len(removed_ids.difference(other.kept[layer.index]))
    return both / pruned if pruned else float("nan")


_PERCENTS = tuple(f"{percent}%" for percent in range(10, 100, 10))
_FLOPS_COLUMNS = ("series", "sparsity", "removed", "flops", "reduction")


@dataclass(frozen=True, eq=False)
class SideBySide:
    """Every scope on one budget."""

    layers: pd.DataFrame  # from `layer_shares`, a series per scope
    flops: pd.DataFrame  # from `flops_saved` at growing sparsities, with the scope as `series`
    refused: dict[str, str]  # scope -> why it is impossible


def scopes_side_by_side(
    ranking: Ranking, spec: PlanSpec, units: Mapping[NeuronScope, Units]
) -> SideBySide:
    """Every scope on the budget of a spec; `units` are the neurons that can go by scope.

    The measured schedule too, which spreads over layers, if the ranking has a sensitivity.
    """
    model, removed, flops, refused = ranking.model, dict[str, Removed](), [], {}
    ways: dict[str, tuple[Units, Sensitivity | None]] = {
        SCOPES[scope]: (of_scope, None) for scope, of_scope in units.items()
    }
    if ranking.sensitivity:
        ways[SCHEDULES[MEASURED].label] = units[NeuronScope.LAYER], ranking.sensitivity
    for name, (of_scope, sensitivity) in ways.items():
        try:
            budget = budget_of(spec, of_scope, model, Evidence(sensitivity=sensitivity))
            by_expert = neurons_removed(of_scope, budget, sensitivity)
        except PlanError as error:
            refused[name] = str(error)
            continue
        removed[name] = by_expert
        saved = flops_saved(model, of_scope, _PERCENTS, ranking.routing, sensitivity)
        flops.append(saved.assign(series=name)[list(_FLOPS_COLUMNS)])
    saved_by_all = pd.concat(flops, ignore_index=True) if flops else pd.DataFrame()
    return SideBySide(layer_shares(removed, next(iter(units.values()))), saved_by_all, refused)


def layer_shares(removed: Mapping[str, Removed], units: Units) -> pd.DataFrame:
    """Table `series, layer, share`: the fraction of each layer's neurons removed, 0..1.

    `removed` is series -> neurons that each expert loses.
    """
    layers, owner = np.unique([layer for layer, _ in units.experts], return_inverse=True)
    sizes = np.bincount(owner, units.sizes)
    rows = [
        (series, layer, share)
        for series, by_expert in removed.items()
        for layer, share in zip(layers, np.bincount(owner, by_expert) / sizes, strict=True)
    ]
    return pd.DataFrame(rows, columns=["series", "layer", "share"])


def flops_saved(
    model: MoEModel,
    units: Units,
    sparsities: Sequence[str],
    routing: Routing | None = None,
    sensitivity: Sensitivity | None = None,
) -> pd.DataFrame:
    """Table `sparsity, removed, flops, reduction`: expected FLOPs of routed experts per token.

    `removed` is the fraction of neurons removed; `flops` what is left; `reduction` the fraction of
    the experts' FLOPs saved, 0..1. The two fractions differ because experts that lose much are
    rarely chosen. Sparsities that the constraints forbid are left out.
    """
    if not units.size:
        raise PlanError("The model has no neurons to remove.")
    before = active_experts(model, keep_all(model), routing)
    shapes, rows, experts = expert_shapes(model), [], kept_experts(model.layers, units.limits)
    for sparsity in sparsities:
        parse_sparsity(sparsity)
        try:
            removed = neurons_removed(units, sparsity_budget(units, sparsity), sensitivity)
        except PlanError:
            continue
        left = widths_left(units, removed, experts)
        weights = Fraction(0)
        for layer in model.layers:
            widths = left[layer.index]
            shares = token_shares(layer, widths, routing)
            width = sum(share * widths[expert] for expert, share in shares.items())
            weights += shapes[layer.index].neuron_weights * width
        flops, share = round(2 * weights), sum(removed) / units.size
        rows.append((sparsity, share, flops, 1 - flops / before.flops))
    return pd.DataFrame(rows, columns=["sparsity", "removed", "flops", "reduction"])
