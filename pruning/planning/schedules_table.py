"""All schedules on one budget side by side: what each keeps, and how far it is from uniform."""

from __future__ import annotations

from collections.abc import Iterable

from analysis.lazy import pd
from analysis.model import MoEModel
from pruning.allocation import Allocation
from pruning.plan import PruningPlan, model_ref, select_experts
from pruning.planning.ranking import Selection
from pruning.schedules import SIDE_COLUMNS, Spending, side_by_side
from pruning.search.store import SEARCH, KnownSearch
from pruning.sizes import weight_bytes

SIDE_TABLE_COLUMNS = (
    *("schedule", "kept", "fewest", "most", "layers changed", "overlap with uniform", "on disk"),
    "plan",
)


def searched_rows(known: Iterable[KnownSearch], removed: int, order: str) -> pd.DataFrame:
    """Table of SIDE_COLUMNS: what searches on a budget found, made on one order of the experts.

    `removed` are experts, `order` is of `order_digest`.
    """
    rows = [
        (f"{SEARCH}:{each.search_id}", layer, kept, each.result.experts[layer] - kept)
        for each in known
        if (each.removed, each.order) == (removed, order)
        for layer, kept in each.kept.items()
    ]
    return pd.DataFrame(rows, columns=list(SIDE_COLUMNS))


def schedules_table(
    selection: Selection, spending: Spending, searched: pd.DataFrame
) -> tuple[pd.DataFrame, pd.DataFrame, dict[str, str]]:
    """Every schedule on one budget: the summary, the counts, and why some are not possible.

    `searched` is a table of `searched_rows`, which come last.

    The summary has SIDE_TABLE_COLUMNS: experts kept in all, fewest and most in a layer, layers
    that differ from the uniform schedule, share of the pruned experts that uniform prunes as
    well, bytes of the weights, digest of the plan.
    """
    counts, refused = side_by_side(spending, selection.evidence)
    counts = pd.concat([counts, searched], ignore_index=True) if len(searched) else counts
    plans = {}
    for name, rows in counts.groupby("schedule", sort=False):
        kept = dict(zip(rows["layer"].tolist(), rows["kept"].tolist(), strict=True))
        keep = tuple(int(kept[layer.index]) for layer in spending.layers)
        allocation = Allocation(spending.layers, keep)
        ref = model_ref(selection.model)
        plans[str(name)] = select_experts(selection.table, allocation, model=ref)
    uniform, summary = plans.get("uniform"), []
    for name, plan in plans.items():
        numbers = [len(ids) for ids in plan.kept.values()]
        changed, overlap = None, float("nan")
        if uniform:
            changed = sum(len(ids) != len(uniform.kept[layer]) for layer, ids in plan.kept.items())
            overlap = _pruned_overlap(plan, uniform, selection.model)
        size = weight_bytes(selection.model, plan)
        spread = (sum(numbers), min(numbers), max(numbers))
        summary.append((name, *spread, changed, overlap, size, plan.digest))
    return pd.DataFrame(summary, columns=list(SIDE_TABLE_COLUMNS)), counts, refused


def _pruned_overlap(plan: PruningPlan, other: PruningPlan, model: MoEModel) -> float:
    """Share of the experts that `plan` prunes which `other` prunes as well; NaN for none."""
    pruned = both = 0
    for layer in model.layers:
        gone = set(range(layer.num_experts)).difference(plan.kept[layer.index])
        pruned += len(gone)
        both += len(gone.difference(other.kept[layer.index]))
    return both / pruned if pruned else float("nan")
