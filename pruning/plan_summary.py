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
    asked = plan.provenance.constraints
    rows = []
    for layer in model.layers:
        count, keep, name = layer.num_experts, len(kept[layer.index]), str(layer.index)
        pinned, dropped = (len(asked.get(key, {}).get(name, ())) for key in ("pinned", "dropped"))
        held = [
            word
            for word, key in (("protected", int), ("fixed", str), ("locked", int))
            if key(name) in asked.get(word, ())
        ]
        removed = count - keep
        share = removed / count
        rows.append((layer.index, count, keep, removed, share, pinned, dropped, " ".join(held)))
    return pd.DataFrame(rows, columns=list(SUMMARY_COLUMNS))
