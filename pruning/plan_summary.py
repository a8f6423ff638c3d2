"""Summary of a plan: what each layer keeps and loses, and what was asked of it."""

import pandas as pd

from analysis.model import MoEModel
from pruning.plan import PruningPlan, fit_plan

SUMMARY_COLUMNS = ("layer", "experts", "kept", "removed", "share", "pinned", "dropped", "held")


def plan_summary(plan: PruningPlan, model: MoEModel) -> pd.DataFrame:
    """Table of SUMMARY_COLUMNS, one row a sparse layer.

    `share` is the fraction removed. `pinned` and `dropped` count the experts that the plan's
    constraints name, and `held` says whether they keep the layer from its schedule: protected,
    fixed, locked, or nothing.

    Raises:
        PlanError: the plan is not for this model.
    """
    kept = fit_plan(plan, model).kept
    rows = []
    for layer in model.layers:
        count, keep = layer.num_experts, len(kept[layer.index])
        removed = count - keep
        rows.append(
            (layer.index, count, keep, removed, removed / count, *asked_of(plan, layer.index))
        )
    return pd.DataFrame(rows, columns=list(SUMMARY_COLUMNS))


def asked_of(plan: PruningPlan, layer: int) -> tuple[int, int, str]:
    """Pinned and dropped experts of a layer, and what holds it; see `plan_summary`."""
    asked, name = plan.provenance.constraints, str(layer)
    pinned, dropped = (len(asked.get(key, {}).get(name, ())) for key in ("pinned", "dropped"))
    held = [
        word
        for word, key in (("protected", int), ("fixed", str), ("locked", int))
        if key(name) in asked.get(word, ())
    ]
    return pinned, dropped, " ".join(held)


def plan_outline(plan: PruningPlan) -> pd.DataFrame:
    """Table `layer, kept`, one row a layer that the plan names: what it can say without a model."""
    rows = [(layer, len(ids)) for layer, ids in plan.kept.items()]
    return pd.DataFrame(rows, columns=["layer", "kept"])
