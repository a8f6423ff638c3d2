"""Alternatives on one budget: all schedules of experts, all scopes of neurons."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from analysis.errors import PlanError
from analysis.lazy import pd
from analysis.model.moe_model import MoEModel
from analysis.model.widths import expert_widths
from analysis.numbers.sparsity import parse_sparsity
from pruning.plan.active import Routing, active_experts, expert_shapes, token_shares
from pruning.plan.allocation import Allocation
from pruning.plan.neuron_budget import ExpertKey, neuron_sparsity_budget
from pruning.plan.neuron_selection import Contest, NeuronScope
from pruning.plan.neuron_size_budget import widths_left
from pruning.plan.plan import PruningPlan, keep_all, model_ref, select_experts
from pruning.plan.sizes import weight_bytes
from pruning.planning.choice import SCOPES
from pruning.planning.neurons import Arena
from pruning.planning.ranking import Ranking
from pruning.schedules import MEASURED, SCHEDULES, SIDE_COLUMNS, Spending, side_by_side
from pruning.search.store import SEARCH, KnownSearch
from pruning.spec.spec import BudgetSpec

SIDE_TABLE_COLUMNS = (
    *("schedule", "kept", "fewest", "most", "layers changed", "overlap with uniform", "on disk"),
    "plan",
)


def searched_rows(known: Iterable[KnownSearch], removed: int, order: str) -> pd.DataFrame:
    """Table of SIDE_COLUMNS with the results of searches on one budget and one order of experts.

    `removed` is the number of experts, `order` is from `order_digest`.
    """
    rows = [
        (f"{SEARCH}:{each.search_id}", layer, kept, each.result.experts[layer] - kept)
        for each in known
        if (each.removed, each.order) == (removed, order)
        for layer, kept in each.kept.items()
    ]
    return pd.DataFrame(rows, columns=list(SIDE_COLUMNS))


def schedules_table(
    ranking: Ranking, spending: Spending, searched: pd.DataFrame
) -> tuple[pd.DataFrame, pd.DataFrame, dict[str, str]]:
    """Every schedule on one budget: the summary, the counts, and why some are impossible.

    `searched` is from `searched_rows` and comes last. The summary has SIDE_TABLE_COLUMNS: experts
    kept in all, fewest and most in a layer, layers that differ from uniform, share of the pruned
    experts that uniform prunes as well, bytes of the weights, digest of the plan.
    """
    counts, refused = side_by_side(spending, ranking.evidence)
    counts = pd.concat([counts, searched], ignore_index=True) if len(searched) else counts
    plans = {}
    for name, rows in counts.groupby("schedule", sort=False):
        kept = dict(zip(rows["layer"].tolist(), rows["kept"].tolist(), strict=True))
        keep = tuple(int(kept[layer.index]) for layer in spending.layers)
        allocation = Allocation(spending.layers, keep)
        ref = model_ref(ranking.model)
        plans[str(name)] = select_experts(
            ranking.table, allocation, model=ref, constraints=spending.constraints
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
    ranking: Ranking, asked: BudgetSpec, arenas: Mapping[NeuronScope, Arena]
) -> SideBySide:
    """Every scope on one budget; `arenas` has the competing neurons by scope.

    The measured schedule too, in which neurons compete within layers, if the ranking has a
    sensitivity.
    """
    model, removed, flops, refused = ranking.model, {}, [], {}
    by_name = {SCOPES[scope]: arena for scope, arena in arenas.items()}
    if ranking.sensitivity:
        measured = arenas[NeuronScope.LAYER].measured(ranking.sensitivity)
        by_name[SCHEDULES[MEASURED].label] = measured
    for name, arena in by_name.items():
        try:
            removed[name] = arena.contest.removed(arena.budget(asked, model))
        except PlanError as error:
            refused[name] = str(error)
            continue
        saved = flops_saved(model, arena.contest, _PERCENTS, ranking.routing, arena.experts)
        flops.append(saved.assign(series=name)[list(_FLOPS_COLUMNS)])
    saved_by_all = pd.concat(flops, ignore_index=True) if flops else pd.DataFrame()
    return SideBySide(layer_shares(removed, expert_widths(model)), saved_by_all, refused)


def layer_shares(
    removed: Mapping[str, Mapping[ExpertKey, int]], widths: Mapping[int, Sequence[int]]
) -> pd.DataFrame:
    """Table `series, layer, share`: the fraction of each layer's neurons removed, 0..1.

    `removed` is series -> neurons that each expert loses, see `Contest.removed`; `widths`, layer ->
    neurons of each of its experts.
    """
    rows = []
    for series, layers in removed.items():
        of_layer = dict.fromkeys(sorted(widths), 0)
        for (layer, _), number in layers.items():
            of_layer[layer] += number
        rows += [(series, layer, n / sum(widths[layer])) for layer, n in of_layer.items()]
    return pd.DataFrame(rows, columns=["series", "layer", "share"])


def flops_saved(
    model: MoEModel,
    contest: Contest,
    sparsities: Sequence[str],
    routing: Routing | None = None,
    experts: Mapping[int, Sequence[int]] | None = None,
) -> pd.DataFrame:
    """Table `sparsity, removed, flops, reduction`: expected FLOPs of routed experts per token.

    `removed` is the fraction of neurons removed; `flops` what is left; `reduction` the fraction of
    the experts' FLOPs saved, 0..1. The two fractions differ because experts that lose much are
    rarely chosen. Sparsities that the constraints forbid are left out. `experts` are the kept ones
    of layers that lose whole experts.
    """
    if not contest.size:
        raise PlanError("The model has no neurons to remove.")
    before = active_experts(model, keep_all(model), routing)
    shapes, rows = expert_shapes(model), []
    for sparsity in sparsities:
        parse_sparsity(sparsity)
        try:
            removed = contest.removed(neuron_sparsity_budget(contest.pools, sparsity))
        except PlanError:
            continue
        left = widths_left(contest, removed, experts or {})
        weights = Fraction(0)
        for layer in model.layers:
            widths = left[layer.index]
            shares = token_shares(layer, widths, routing)
            width = sum(share * widths[expert] for expert, share in shares.items())
            weights += shapes[layer.index].neuron_weights * width
        flops, share = round(2 * weights), sum(removed.values()) / contest.size
        rows.append((sparsity, share, flops, 1 - flops / before.flops))
    return pd.DataFrame(rows, columns=["sparsity", "removed", "flops", "reduction"])
