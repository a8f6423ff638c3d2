"""Single schedules, applied to layers and a budget."""

import numpy as np
import pandas as pd

from pruning.measures.curves import Curve, Curves, Sensitivity
from pruning.plan.units import expert_units
from pruning.schedules import SCHEDULES, Evidence, allocate


def sensitivity_of(*costs):
    """What was measured: a list for each layer, the costs of losing 0, 1, 2 ... experts."""
    curves = tuple(Curve(np.arange(len(cost)), np.array(cost, dtype=float)) for cost in costs)
    return Sensitivity((Curves(curves, {}),))


SPENDERS = [name for name in SCHEDULES if name != "file"]


def ranking_of(layers, grid):
    """A ranking by the saliencies in a grid; of equal ones the lower expert stays first."""
    rows = []
    for layer, values in zip(layers, np.asarray(grid), strict=True):
        own = values[: layer.num_experts]
        ranks = np.argsort(np.argsort(-own, kind="stable"))
        rows += [(layer.index, e, x, x, ranks[e], 1) for e, x in enumerate(own)]
    columns = ["layer", "expert", "score", "saliency", "rank", "num_tokens"]
    return pd.DataFrame(rows, columns=columns)


def choices_of(units):
    """The numbers that each row can lose."""
    ends = zip(units.least, units.most, strict=True)
    return [range(least, most + 1, units.step) for least, most in ends]


def evidence_in(grid):
    """A grid as saliency, as counts of tokens, and as what every further expert costs."""
    costs = [np.cumsum([0.0, *np.sort(row[~np.isnan(row)])]) for row in grid]
    return Evidence(grid, grid, sensitivity=sensitivity_of(*costs))


def patterned(layers, budget, pattern, constraints=None):
    """The allocation by a pattern."""
    return allocate(pattern, expert_units(layers, constraints), budget)


def ranked_globally(layers, budget, saliency, constraints=None):
    """The allocation that removes the experts of the lowest saliency."""
    return allocate("global", expert_units(layers, constraints), budget, Evidence(saliency))
