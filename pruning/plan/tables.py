"""Tables of plans: what each layer keeps and loses, and where two plans differ."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from analysis.errors import PlanError
from analysis.lazy import pd
from analysis.model.widths import expert_widths
from pruning.plan.bits import OWN
from pruning.plan.experts_per_token import has_one_top_k
from pruning.plan.kept import kept_ids
from pruning.plan.plan import PruningPlan, fit_plan

if TYPE_CHECKING:
    from analysis.families.base import MoELayer
    from analysis.model.moe_model import MoEModel

_WIDTHS = ("least", "mean", "most", "empty")
_ASKED = ("pinned", "dropped", "held")
SUMMARY_COLUMNS = ("layer", "experts", "kept", "removed", "share", *_ASKED)
NEURON_SUMMARY_COLUMNS = (
    "layer",
    "experts",
    "kept",
    "neurons",
    "stay",
    "share",
    *_WIDTHS,
    *_ASKED,
)
NEURON_OUTLINE_COLUMNS = ("layer", "kept", "cut", *_WIDTHS)


def plan_summary(plan: PruningPlan, model: MoEModel) -> pd.DataFrame:
    """Table of SUMMARY_COLUMNS, one row a sparse layer; of neurons see `neuron_summary`.

    `share` is the fraction removed. `pinned` and `dropped` count the experts that the plan's
    constraints name; `held` says what takes the layer from its schedule: protected, fixed, locked.
    Where layers differ in bits or in experts per token, columns `bits` and `top_k` say so.
    """
    fitted = fit_plan(plan, model)
    kept = fitted.kept
    rows = []
    for layer in model.layers:
        count, keep = layer.num_experts, len(kept[layer.index])
        numbers = (count, keep, count - keep, (count - keep) / count)
        rows.append((layer.index, *numbers, *_constraints_of(plan, layer.index)))
    return _by_layer(pd.DataFrame(rows, columns=list(SUMMARY_COLUMNS)), fitted)


def neuron_summary(plan: PruningPlan, model: MoEModel) -> pd.DataFrame:
    """Table of NEURON_SUMMARY_COLUMNS, one row a sparse layer.

    `kept` of `experts` and `stay` of `neurons` are kept; `share` is the fraction of neurons
    removed, removed experts included. `least`, `mean` and `most` are widths of kept experts,
    `empty` counts those without a neuron. The rest is as in `plan_summary`.
    """
    fitted = fit_plan(plan, model)
    rows = []
    for layer, widths in expert_widths(model).items():
        ids = fitted.kept[layer]
        stays = [
            len(kept_ids(fitted.kept_neurons, layer, expert, widths[expert])) for expert in ids
        ]
        size, num_kept = sum(widths), sum(stays)
        counts = (layer, len(widths), len(ids), size, num_kept, 1 - num_kept / size)
        rows.append((*counts, *_widths(stays), *_constraints_of(plan, layer)))
    return _by_layer(pd.DataFrame(rows, columns=list(NEURON_SUMMARY_COLUMNS)), fitted)


def _by_layer(table: pd.DataFrame, plan: PruningPlan) -> pd.DataFrame:
    """The table with columns of what layers differ in besides what they keep."""
    if plan.layer_bits:
        table = table.assign(bits=[plan.bits_in(layer) or OWN for layer in table["layer"]])
    if not has_one_top_k(plan.top_k):
        table = table.assign(top_k=table["layer"].map(dict(plan.top_k)).astype("Int64"))
    return table


def _widths(stays: Sequence[int]) -> tuple[int, float, int, int]:
    return min(stays), sum(stays) / len(stays), max(stays), stays.count(0)


def _constraints_of(plan: PruningPlan, layer: int) -> tuple[int, int, str]:
    """Pinned and dropped experts of a layer, and what holds it, see `plan_summary`."""
    constraints, name = plan.provenance.constraints, str(layer)
    pinned, dropped = (len(constraints.get(key, {}).get(name, ())) for key in ("pinned", "dropped"))
    words = [
        word
        for word, key in (("protected", int), ("fixed", str), ("locked", int))
        if key(name) in constraints.get(word, ())
    ]
    return pinned, dropped, " ".join(words)


def plan_outline(plan: PruningPlan) -> pd.DataFrame:
    """Table `layer, kept`, one row per layer that the plan names; needs no model."""
    rows = [(layer, len(ids)) for layer, ids in plan.kept.items()]
    return _by_layer(pd.DataFrame(rows, columns=["layer", "kept"]), plan)


def neuron_outline(plan: PruningPlan) -> pd.DataFrame:
    """Table of NEURON_OUTLINE_COLUMNS, one row per layer that the plan names; needs no model.

    `kept` counts kept experts, unknown if the plan does not name them. `cut` experts lose neurons;
    the widths are theirs, unknown without any.
    """
    rows = []
    for layer in sorted({*plan.kept, *plan.kept_neurons}):
        stays = [len(ids) for ids in plan.kept_neurons.get(layer, {}).values()]
        kept = len(plan.kept[layer]) if layer in plan.kept else None
        widths = _widths(stays) if stays else (None, None, None, None)
        rows.append((layer, kept, len(stays), *widths))
    table = pd.DataFrame(rows, columns=list(NEURON_OUTLINE_COLUMNS))
    counts = dict.fromkeys(("kept", "least", "most", "empty"), "Int64")
    return _by_layer(table.astype({**counts, "mean": "float64"}), plan)


STATES = ("both", "only_a", "only_b", "neither")
DIFF_COLUMNS = ("layer", *STATES, "jaccard", "agreement")
NEURON_STATE_COLUMNS = ("layer", "expert", *STATES)
NEURON_DIFF_COLUMNS = ("layer", "experts", "differ", *STATES, "jaccard", "agreement")
_PAIRS = ((True, True), (True, False), (False, True), (False, False))  # A keeps it, B does
_STATE_OF = dict(zip(_PAIRS, STATES, strict=True))


def expert_states(
    first: PruningPlan, second: PruningPlan, layers: Sequence[MoELayer] = ()
) -> pd.DataFrame:
    """Table `layer, expert, state`: who keeps an expert, one of STATES.

    Without `layers`, only experts that a plan keeps are known, so none is `neither`, and both plans
    must name the same layers.
    """
    _check_same_model(first, second)
    counts = {layer.index: layer.num_experts for layer in layers}
    rows = []
    for layer in sorted({*first.kept, *second.kept, *counts}):
        if layer not in counts and not (layer in first.kept and layer in second.kept):
            raise PlanError(
                f"Only one of the plans names layer {layer}; the other keeps it whole, and only "
                "the model says how many experts these are."
            )
        all_ids = range(counts.get(layer, 0))
        a, b = (frozenset(plan.kept.get(layer, all_ids)) for plan in (first, second))
        everyone = all_ids if layer in counts else sorted(a | b)
        rows += [(layer, expert, _STATE_OF[expert in a, expert in b]) for expert in everyone]
    return pd.DataFrame(rows, columns=["layer", "expert", "state"])


def neuron_states(
    first: PruningPlan, second: PruningPlan, model: MoEModel | None = None
) -> pd.DataFrame:
    """Table of NEURON_STATE_COLUMNS, one row per expert: its neurons by who keeps them.

    A removed expert keeps none, so plans of whole experts compare as well. Without the model there
    are only experts that a plan names, and `neither` is unknown.
    """
    _check_same_model(first, second)
    widths: dict[tuple[int, int], int | None] = {}
    if model is not None:
        first, second = fit_plan(first, model), fit_plan(second, model)
        for layer, layer_widths in expert_widths(model).items():
            widths |= {(layer, expert): width for expert, width in enumerate(layer_widths)}
    else:
        neurons = (*first.kept_neurons.items(), *second.kept_neurons.items())
        widths = dict.fromkeys(
            sorted((layer, expert) for layer, experts in neurons for expert in experts)
        )
    rows = []
    for (layer, expert), width in widths.items():
        a, b = (_kept_neurons(plan, layer, expert, width) for plan in (first, second))
        both = len(a) if a == b else len(frozenset(a).intersection(b))
        neither = None if width is None else width - len(a) - len(b) + both
        rows.append((layer, expert, both, len(a) - both, len(b) - both, neither))
    table = pd.DataFrame(rows, columns=list(NEURON_STATE_COLUMNS))
    return table.astype({"neither": "Int64"})


def _kept_neurons(plan: PruningPlan, layer: int, expert: int, width: int | None) -> Sequence[int]:
    """Kept neurons of an expert; without its width, as far as the plan alone says."""
    if layer in plan.kept and expert not in plan.kept[layer]:
        return ()
    ids = plan.kept_neurons.get(layer, {}).get(expert)
    if ids is None and width is None:
        raise PlanError(
            f"Only one of the plans cuts expert {expert} of layer {layer}; the other keeps it "
            "whole, and only the model says how many neurons these are."
        )
    return range(width or 0) if ids is None else ids


def plan_diff(
    first: PruningPlan, second: PruningPlan, layers: Sequence[MoELayer] = ()
) -> pd.DataFrame:
    """Table of DIFF_COLUMNS, one row per layer: experts in each state, and how alike the plans are.

    `jaccard` is |A and B| / |A or B| of the kept sets. `agreement` is the share of all experts that
    both plans treat alike; without `layers` it is NaN, and `neither` is empty.
    """
    states = expert_states(first, second, layers)
    counts = pd.crosstab(states["layer"], states["state"]).reindex(
        columns=list(STATES), fill_value=0
    )
    counts = counts.rename_axis(columns=None).reset_index()
    return _likeness(counts, is_complete=bool(layers))[list(DIFF_COLUMNS)]


def neuron_diff(
    first: PruningPlan, second: PruningPlan, model: MoEModel | None = None
) -> pd.DataFrame:
    """Table of NEURON_DIFF_COLUMNS, one row per layer: neurons in each state.

    `experts` counts the experts of the layer (without the model, those that a plan names), `differ`
    those whose kept neurons differ. The rest is as in `plan_diff`; `jaccard` is 1 if neither plan
    keeps a neuron.
    """
    states = neuron_states(first, second, model)
    differ = (states["only_a"] + states["only_b"] > 0).astype("int64")
    states = states.assign(experts=1, differ=differ)
    counts = states.groupby("layer", as_index=False)[["experts", "differ", *STATES]].sum()
    return _likeness(counts, is_complete=model is not None)[list(NEURON_DIFF_COLUMNS)]


def _likeness(counts: pd.DataFrame, *, is_complete: bool) -> pd.DataFrame:
    """Counts of STATES by layer, with `jaccard` and `agreement`."""
    if not is_complete:
        counts = counts.assign(neither=pd.array([pd.NA] * len(counts), dtype="Int64"))
    either = counts["both"] + counts["only_a"] + counts["only_b"]
    alike = (counts["both"] + counts["neither"]) / (either + counts["neither"])
    return counts.assign(
        jaccard=(counts["both"] / either).where(either > 0, 1.0),
        agreement=alike.astype("Float64").to_numpy(dtype="float64", na_value=float("nan")),
    )


def _check_same_model(first: PruningPlan, second: PruningPlan) -> None:
    if first.model.identity != second.model.identity:
        raise PlanError(
            f"The plans are of different models: {first.model.name} (identity "
            f"{first.model.identity[:8]}) and {second.model.name} ({second.model.identity[:8]})."
        )
