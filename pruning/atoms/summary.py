"""Summary of a plan of neurons: how wide the experts of each layer stay."""

from collections.abc import Sequence

import pandas as pd

from analysis.model import MoEModel
from analysis.widths import expert_widths
from pruning.atoms.kept import atoms_of
from pruning.plan import PruningPlan, fit_plan
from pruning.plan_summary import asked_of

_WIDTHS = ("least", "mean", "most", "empty")
ATOM_SUMMARY_COLUMNS = (
    *("layer", "experts", "kept", "neurons", "stay", "share", *_WIDTHS),
    *("pinned", "dropped", "held"),
)
ATOM_OUTLINE_COLUMNS = ("layer", "kept", "cut", *_WIDTHS)


def atom_summary(plan: PruningPlan, model: MoEModel) -> pd.DataFrame:
    """Table of ATOM_SUMMARY_COLUMNS, one row a sparse layer.

    `kept` of `experts` stay, and `stay` of their `neurons`; `share` is the fraction of neurons
    removed, with those of removed experts. `least`, `mean` and `most` are widths of the experts
    that stay, `empty` how many of these have no neuron left. The rest is as in `plan_summary`.

    Raises:
        PlanError: the plan is not for this model.
    """
    fitted = fit_plan(plan, model)
    rows = []
    for layer, widths in expert_widths(model).items():
        ids = fitted.kept[layer]
        stays = [len(atoms_of(fitted.kept_atoms, layer, expert, widths[expert])) for expert in ids]
        size, left = sum(widths), sum(stays)
        counts = (layer, len(widths), len(ids), size, left, 1 - left / size)
        rows.append((*counts, *_widths(stays), *asked_of(plan, layer)))
    return pd.DataFrame(rows, columns=list(ATOM_SUMMARY_COLUMNS))


def _widths(stays: Sequence[int]) -> tuple[int, float, int, int]:
    return min(stays), sum(stays) / len(stays), max(stays), stays.count(0)


def atom_outline(plan: PruningPlan) -> pd.DataFrame:
    """Table of ATOM_OUTLINE_COLUMNS, one row a layer that the plan names: what it alone can say.

    `kept` is the number of experts that stay, unknown where the plan does not name them. `cut`
    experts lose neurons; the widths are theirs, unknown where there are none.
    """
    rows = []
    for layer in sorted({*plan.kept, *plan.kept_atoms}):
        stays = [len(ids) for ids in plan.kept_atoms.get(layer, {}).values()]
        kept = len(plan.kept[layer]) if layer in plan.kept else None
        widths = _widths(stays) if stays else (None, None, None, None)
        rows.append((layer, kept, len(stays), *widths))
    table = pd.DataFrame(rows, columns=list(ATOM_OUTLINE_COLUMNS))
    counts = dict.fromkeys(("kept", "least", "most", "empty"), "Int64")
    return table.astype({**counts, "mean": "float64"})
