"""What the fit of a layer costs, by the shapes that `solver` works on."""

from analysis.model.moe_model import MoEModel
from analysis.model.widths import computed_widths
from analysis.progress import Costs, cost
from pruning.repair.solver import DAMPINGS, ITERATIONS, SAMPLE_COLUMNS

# An element that is gathered, added up or turned takes as long as so many multiply-adds: of the
# tokens' rows, and of the unknowns.
_MOVED, _TURNED = 100, 300


def fit_costs(model: MoEModel, layer: int, kept: int, tokens: int) -> tuple[Costs, Costs]:
    """What it costs to choose a damping for a layer that keeps so many experts, and to fit with it.

    Where the choice finds that nothing is gained, there is no fit.
    """
    width = max(computed_widths(model)[layer])
    top_k = next(found.top_k for found in model.layers if found.index == layer)
    rows = tokens * min(top_k, kept)

    def solving(inverses: int, columns: int, grams: int) -> Costs:
        of_rows = 2 * ITERATIONS * rows * columns * (width + _MOVED)
        of_unknowns = ITERATIONS * kept * width * columns * (width + _TURNED)
        return {
            "fit": cost("fit", of_rows + of_unknowns + grams),
            "invert": cost("invert", inverses * kept * width**3),
        }

    dampings = len(DAMPINGS)
    choosing = solving(dampings, dampings * SAMPLE_COLUMNS, rows * width**2)
    return choosing, solving(1, model.expert_output_size, 0)  # which adds few rows to the matrices
