"""Difference of two plans: which experts both keep, only one of them, or neither."""

from collections.abc import Sequence

import pandas as pd

from analysis.errors import PlanError
from analysis.families import MoELayer
from pruning.plan import PruningPlan

STATES = ("both", "only_a", "only_b", "neither")
DIFF_COLUMNS = ("layer", *STATES, "jaccard", "agreement")


def expert_states(
    first: PruningPlan, second: PruningPlan, layers: Sequence[MoELayer] = ()
) -> pd.DataFrame:
    """Table `layer, expert, state`: who keeps an expert, one of STATES.

    Without `layers` only experts that a plan keeps are known, so that none is in the state
    `neither`.

    Raises:
        PlanError: plans of different models, or a layer that only one of them names (it keeps all
            experts there, and only `layers` say how many these are).
    """
    check_same_model(first, second)
    counts = {layer.index: layer.num_experts for layer in layers}
    rows = []
    for layer in sorted({*first.kept, *second.kept, *counts}):
        kept = [_kept(plan, layer, counts) for plan in (first, second)]
        everyone = range(counts[layer]) if layer in counts else sorted(kept[0] | kept[1])
        rows += [
            (layer, expert, _state(expert in kept[0], expert in kept[1])) for expert in everyone
        ]
    return pd.DataFrame(rows, columns=["layer", "expert", "state"])


def check_same_model(first: PruningPlan, second: PruningPlan) -> None:
    """Refuse to compare plans of different models.

    Raises:
        PlanError: they are.
    """
    if first.model.identity != second.model.identity:
        raise PlanError(
            f"The plans are of different models: {first.model.name} (identity "
            f"{first.model.identity[:8]}) and {second.model.name} ({second.model.identity[:8]})."
        )


def _kept(plan: PruningPlan, layer: int, counts: dict[int, int]) -> frozenset[int]:
    if layer in plan.kept:
        return frozenset(plan.kept[layer])
    if layer not in counts:
        raise PlanError(
            f"Only one of the plans names layer {layer}; the other keeps it whole, and only the "
            "model says how many experts these are."
        )
    return frozenset(range(counts[layer]))


def _state(in_first: bool, in_second: bool) -> str:
    if in_first == in_second:
        return "both" if in_first else "neither"
    return "only_a" if in_first else "only_b"


def plan_diff(
    first: PruningPlan, second: PruningPlan, layers: Sequence[MoELayer] = ()
) -> pd.DataFrame:
    """Table of DIFF_COLUMNS, one row a layer: numbers of experts in each state, and how alike.

    `jaccard` is |A and B| / |A or B| of the kept sets. `agreement` is the share of all experts that
    both plans treat alike; NaN without `layers`, and `neither` is then empty.

    Raises:
        PlanError: see `expert_states`.
    """
    states = expert_states(first, second, layers)
    counts = pd.crosstab(states["layer"], states["state"]).reindex(
        columns=list(STATES), fill_value=0
    )
    counts = counts.rename_axis(columns=None).reset_index()
    either = counts["both"] + counts["only_a"] + counts["only_b"]
    alike = (counts["both"] + counts["neither"]) / (either + counts["neither"])
    table = counts.assign(jaccard=counts["both"] / either, agreement=alike)
    if not layers:
        unknown = pd.array([pd.NA] * len(table), dtype="Int64")
        table = table.assign(neither=unknown, agreement=float("nan"))
    return table[list(DIFF_COLUMNS)]
