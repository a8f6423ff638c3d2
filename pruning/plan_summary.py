"""Summary of a plan: what each layer keeps and loses, and what was asked of it."""

from __future__ import annotations

from collections.abc import Sequence

from analysis.lazy import pd
from analysis.model import MoEModel
from analysis.widths import expert_widths
from pruning.atoms.kept import atoms_of
from pruning.plan import PruningPlan, fit_plan

_WIDTHS = ("least", "mean", "most", "empty")
_ASKED = ("pinned", "dropped", "held")
SUMMARY_COLUMNS = ("layer", "experts", "kept", "removed", "share", *_ASKED)
NEURON_SUMMARY_COLUMNS = (
    *("layer", "experts", "kept", "neurons", "stay", "share", *_WIDTHS),
    *_ASKED,
)
NEURON_OUTLINE_COLUMNS = ("layer", "kept", "cut", *_WIDTHS)


def plan_summary(plan: PruningPlan, model: MoEModel) -> pd.DataFrame:
    """Table of SUMMARY_COLUMNS, one row a sparse layer; of neurons see `neuron_summary`.

    `share` is the fraction removed. `pinned` and `dropped` count the experts that the plan's
    constraints name, and `held` says whether they keep the layer from its schedule: protected,
    fixed, locked, or nothing.
    """
    kept = fit_plan(plan, model).kept
    rows = []
    for layer in model.layers:
        count, keep = layer.num_experts, len(kept[layer.index])
        numbers = (count, keep, count - keep, (count - keep) / count)
        rows.append((layer.index, *numbers, *_asked_of(plan, layer.index)))
    return pd.DataFrame(rows, columns=list(SUMMARY_COLUMNS))


def neuron_summary(plan: PruningPlan, model: MoEModel) -> pd.DataFrame:
    """Table of NEURON_SUMMARY_COLUMNS, one row a sparse layer.

    `kept` of `experts` stay, and `stay` of their `neurons`; `share` is the fraction of neurons
    removed, with those of removed experts. `least`, `mean` and `most` are widths of the experts
    that stay, `empty` how many of these have no neuron left. The rest is as in `plan_summary`.
    """
    fitted = fit_plan(plan, model)
    rows = []
    for layer, widths in expert_widths(model).items():
        ids = fitted.kept[layer]
        stays = [len(atoms_of(fitted.kept_atoms, layer, expert, widths[expert])) for expert in ids]
        size, left = sum(widths), sum(stays)
        counts = (layer, len(widths), len(ids), size, left, 1 - left / size)
        rows.append((*counts, *_widths(stays), *_asked_of(plan, layer)))
    return pd.DataFrame(rows, columns=list(NEURON_SUMMARY_COLUMNS))


def _widths(stays: Sequence[int]) -> tuple[int, float, int, int]:
    return min(stays), sum(stays) / len(stays), max(stays), stays.count(0)


def _asked_of(plan: PruningPlan, layer: int) -> tuple[int, int, str]:
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


def neuron_outline(plan: PruningPlan) -> pd.DataFrame:
    """Table of NEURON_OUTLINE_COLUMNS, one row a layer that the plan names, without a model.

    `kept` is the number of experts that stay, unknown where the plan does not name them. `cut`
    experts lose neurons; the widths are theirs, unknown where there are none.
    """
    rows = []
    for layer in sorted({*plan.kept, *plan.kept_atoms}):
        stays = [len(ids) for ids in plan.kept_atoms.get(layer, {}).values()]
        kept = len(plan.kept[layer]) if layer in plan.kept else None
        widths = _widths(stays) if stays else (None, None, None, None)
        rows.append((layer, kept, len(stays), *widths))
    table = pd.DataFrame(rows, columns=list(NEURON_OUTLINE_COLUMNS))
    counts = dict.fromkeys(("kept", "least", "most", "empty"), "Int64")
    return table.astype({**counts, "mean": "float64"})
