"""What a repair costs, and the fit of a layer, by the shapes that `solver` works on. No torch."""

from collections.abc import Mapping, Sequence
from functools import reduce

from analysis.model.layer_costs import layer_costs
from analysis.model.moe_model import MoEModel
from analysis.model.widths import computed_widths
from analysis.progress import Costs, added, cost
from analysis.stats.manifest import Run
from pruning.plan.plan import PruningPlan
from pruning.planning.searches import forward_seconds, start_seconds
from pruning.repair.effort import (
    DAMPINGS,
    INVERSES,
    ITERATIONS,
    PRODUCTS,
    SAMPLE_COLUMNS,
    SOLUTION,
    TRIAL,
    TRIAL_INVERSES,
)
from pruning.requests.repair import DEFAULT_REPAIR_TOKENS

# An element that is gathered, added up or turned takes as long as so many multiply-adds: of the
# tokens' rows, and of the unknowns.
_MOVED, _TURNED = 100, 300


def repair_costs(
    model: MoEModel, plan: PruningPlan | None = None, tokens: int = DEFAULT_REPAIR_TOKENS
) -> Costs:
    """What the repair of a plan is expected to cost; of one that is not made yet, of half."""
    layers, kinds = layer_costs(model), ("observe", "run repaired")
    running = {kind: layers.running(tokens, *range(model.depth), kind=kind) for kind in kinds}
    costs: Costs = {"read": layers.reading(*layers.num_bytes), **running}
    for layer in model.layers:
        kept = len(plan.kept[layer.index]) if plan else layer.num_experts // 2
        costs = reduce(added, fit_costs(model, layer.index, kept, tokens).values(), costs)
    return costs


def repair_seconds(
    model: MoEModel, plan: PruningPlan, tokens: int, runs: Sequence[Run]
) -> tuple[float, float] | None:
    """Seconds to repair a plan, start included, at best and at worst, by the pace of calibrations.

    None if there are none. Products of a repair are as much slower than those of a forward here as
    where their costs were measured.
    """
    costs, layers = repair_costs(model, plan, tokens), layer_costs(model)
    one = layers.running(1, *range(model.depth))
    products = sum(amount for kind, amount in costs.items() if kind != "read")
    if (forwards := forward_seconds(products / one, runs)) is None:
        return None
    low, high = map(sum, zip(start_seconds(model.checkpoint.nbytes), forwards, strict=True))
    return low, high


def fit_costs(model: MoEModel, layer: int, kept: int, tokens: int) -> Mapping[str, Costs]:
    """What each stage of the fit of a layer costs that keeps so many experts, see `effort`."""
    width = max(computed_widths(model)[layer])
    top_k = next(found.top_k for found in model.layers if found.index == layer)
    rows = tokens * min(top_k, kept)

    def inverting(dampings: int) -> Costs:
        return {"invert": cost("invert", dampings * kept * width**3)}

    def solving(columns: int) -> Costs:
        of_rows = 2 * ITERATIONS * rows * columns * (width + _MOVED)
        of_unknowns = ITERATIONS * kept * width * columns * (width + _TURNED)
        return {"fit": cost("fit", of_rows + of_unknowns)}

    return {
        PRODUCTS: {"fit": cost("fit", rows * width**2)},
        TRIAL_INVERSES: inverting(len(DAMPINGS)),
        TRIAL: solving(len(DAMPINGS) * SAMPLE_COLUMNS),
        INVERSES: inverting(1),  # which adds few rows to the matrices
        SOLUTION: solving(model.expert_output_size),
    }
