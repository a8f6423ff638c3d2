"""Difference of two plans by neurons: those that both keep, only one of the plans, or neither."""

from collections.abc import Sequence

import pandas as pd

from analysis.errors import PlanError
from analysis.model import MoEModel
from analysis.widths import expert_widths
from pruning.atoms.kept import atoms_of
from pruning.plan import PruningPlan, fit_plan
from pruning.plan_diff import STATES, check_same_model

ATOM_STATE_COLUMNS = ("layer", "expert", *STATES)
ATOM_DIFF_COLUMNS = ("layer", "experts", "differ", *STATES, "jaccard", "agreement")


def atom_states(
    first: PruningPlan, second: PruningPlan, model: MoEModel | None = None
) -> pd.DataFrame:
    """Table of ATOM_STATE_COLUMNS, one row an expert: its neurons by who keeps them.

    An expert that a plan removes keeps none, so plans of whole experts compare as well. Without
    the model only experts that a plan names are there, and `neither` is unknown.

    Raises:
        PlanError: plans of different models, or an expert that one plan cuts and the other keeps
            whole (only the model says how many neurons these are).
    """
    check_same_model(first, second)
    if model is None:
        rows = _named(first, second)
    else:
        rows = _all(fit_plan(first, model), fit_plan(second, model), model)
    table = pd.DataFrame(rows, columns=list(ATOM_STATE_COLUMNS))
    return table.astype({"neither": "Int64"})


def _all(first: PruningPlan, second: PruningPlan, model: MoEModel) -> list[tuple[object, ...]]:
    rows: list[tuple[object, ...]] = []
    for layer, widths in expert_widths(model).items():
        for expert, width in enumerate(widths):
            kept_a, kept_b = (_kept(plan, layer, expert, width) for plan in (first, second))
            rows.append((layer, expert, *_states(kept_a, kept_b, width)))
    return rows


def _kept(plan: PruningPlan, layer: int, expert: int, width: int) -> Sequence[int]:
    """Neurons of an expert that stay under a complete plan."""
    if expert not in plan.kept[layer]:
        return ()
    return atoms_of(plan.kept_atoms, layer, expert, width)


def _named(first: PruningPlan, second: PruningPlan) -> list[tuple[object, ...]]:
    """Rows of the experts whose neurons both plans say, or of which one keeps nothing."""
    named = {
        (layer, expert)
        for plan in (first, second)
        for layer, experts in plan.kept_atoms.items()
        for expert in experts
    }
    return [
        (layer, expert, *_states(_said(first, layer, expert), _said(second, layer, expert), None))
        for layer, expert in sorted(named)
    ]


def _said(plan: PruningPlan, layer: int, expert: int) -> Sequence[int]:
    if layer in plan.kept and expert not in plan.kept[layer]:
        return ()
    ids = plan.kept_atoms.get(layer, {}).get(expert)
    if ids is None:
        raise PlanError(
            f"Only one of the plans cuts expert {expert} of layer {layer}; the other keeps it "
            "whole, and only the model says how many neurons these are."
        )
    return ids


def _states(
    first: Sequence[int], second: Sequence[int], width: int | None
) -> tuple[int, int, int, int | None]:
    """Numbers of neurons in the order of STATES."""
    both = len(first) if first == second else len(frozenset(first).intersection(second))
    only_a, only_b = len(first) - both, len(second) - both
    return both, only_a, only_b, None if width is None else width - both - only_a - only_b


def atom_diff(
    first: PruningPlan, second: PruningPlan, model: MoEModel | None = None
) -> pd.DataFrame:
    """Table of ATOM_DIFF_COLUMNS, one row a layer: numbers of neurons in each state.

    `experts` counts the experts of the layer (without the model: those that a plan names),
    `differ` those of which the plans do not keep the same neurons. `jaccard` is |A and B| /
    |A or B| of the kept neurons, 1 where neither plan keeps one; `agreement` the share of all
    neurons that both treat alike, NaN without the model.

    Raises:
        PlanError: see `atom_states`.
    """
    states = atom_states(first, second, model)
    states = states.assign(
        experts=1, differ=(states["only_a"] + states["only_b"] > 0).astype("int64")
    )
    table = states.groupby("layer", as_index=False)[["experts", "differ", *STATES]].sum()
    if model is None:
        table = table.assign(neither=pd.array([pd.NA] * len(table), dtype="Int64"))
    either = table["both"] + table["only_a"] + table["only_b"]
    alike = (table["both"] + table["neither"]) / (either + table["neither"])
    table = table.assign(
        jaccard=(table["both"] / either).where(either > 0, 1.0),
        agreement=alike.astype("Float64").to_numpy(dtype="float64", na_value=float("nan")),
    )
    return table[list(ATOM_DIFF_COLUMNS)]
