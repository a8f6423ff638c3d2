"""A plan of neurons as the dashboard asks for one: the choice in the address, and its recipe."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from analysis.criteria import NEURON_CRITERIA
from analysis.errors import PlanError
from analysis.lazy import pd
from analysis.sparsity import parse_sparsity
from pruning.atoms.selection import AtomScope
from pruning.atoms.sizes import PLAN_ALONE
from pruning.atoms.widths import DEFAULT_MULTIPLE
from pruning.plan import ATOMIC_GRANULARITY
from pruning.planning.percents import SPARSITY_STEP
from pruning.planning.planning import MULTIPLES, layers_in, not_here, ranges
from pruning.recipe import BudgetSection, Recipe
from pruning.requests.base import validated
from pruning.requests.options import ModeName
from pruning.requests.plan import PlanRequest

BudgetUnit = Literal["neurons", "params"]
UNITS: Mapping[BudgetUnit, str] = {"neurons": "Neurons", "params": "All parameters"}
WIDTH_MODES: tuple[ModeName, ...] = ("uniform", "per-layer", "ragged")
WIDTH_MULTIPLES = (1, 2, 4, 8, 16, 32, 64, 128)
_EXPERTS = re.compile(r"[\d:,\-\s;]*")


@dataclass(frozen=True, slots=True)
class NeuronPlanChoice:
    """What the controls of a plan of neurons say, as in the address.

    Args:
        criterion: what ranks.
        scope: among which neurons the budget is spent.
        unit: what the sparsity is a share of.
        width_mode: how an export stores widths.
        width_multiple: what loaded widths are rounded up to.
        multiple_of: experts keep a multiple of this many neurons.
        protect: layers that lose nothing, as text.
        pin: experts that lose nothing, as text: `3:5,7-9 4:0`.
        drop: experts that go as a whole, as text.
    """

    criterion: str = "heapr"
    scope: AtomScope = AtomScope.GLOBAL
    unit: BudgetUnit = "neurons"
    width_mode: ModeName = "uniform"
    width_multiple: int = DEFAULT_MULTIPLE
    multiple_of: int = 1
    protect: str = ""
    pin: str = ""
    drop: str = ""

    @property
    def is_plain(self) -> bool:
        """Whether criterion, texts and sparsity say all: what figures drawn elsewhere are told."""
        limits = (self.protect.strip(), self.pin.strip(), self.drop.strip())
        return self.unit == "neurons" and self.multiple_of == 1 and not any(limits)


def experts_in(text: str) -> tuple[str, ...]:
    """Groups such as `3:5,7-9` in text with blanks or semicolons between them."""
    if not _EXPERTS.fullmatch(text):
        raise PlanError(
            f"{text[:80]!r} names no experts; write LAYER:EXPERTS, such as 3:5,7-9, with blanks "
            "between layers."
        )
    return tuple(text.replace(";", " ").split())


def plan_request(choice: NeuronPlanChoice, sparsity: str, base: Mapping[str, Any]) -> PlanRequest:
    """The plan that the command line would be asked for.

    Args:
        choice: the controls.
        sparsity: share of what `choice.unit` says.
        base: model, corpora and statistics folder, as fields of the request.
    """
    protected = ranges(layers_in(choice.protect))
    budget = "sparsity" if choice.unit == "neurons" else "params_share"
    request: PlanRequest = validated(
        PlanRequest,
        {
            **base,
            "granularity": ATOMIC_GRANULARITY,
            budget: sparsity,
            "criterion": choice.criterion,
            "atom_scope": str(choice.scope),
            "multiple_of": choice.multiple_of,
            "protect": (protected,) if protected else (),
            "pin": experts_in(choice.pin),
            "drop": experts_in(choice.drop),
            # Of a plan they change nothing but what is printed of its sizes.
            "width_multiple_of": choice.width_multiple,
        },
    )
    return request


def controls_of(recipe: Recipe) -> dict[str, Any]:
    """The controls that ask what a recipe of neurons asks: their keys in the address -> values."""
    limits, budget = recipe.constraints, recipe.budget
    criterion = recipe.criterion
    multiple = recipe.width_multiple
    unfit = {
        "kept_atoms": recipe.kept_atoms is not None,
        "a target size or a number of neurons": budget is None or _share(budget) is None,
        f"criterion: {criterion}": criterion not in NEURON_CRITERIA,
        "constraints.floor": limits.floor > 0,
        f"multiple_of: {limits.multiple_of}": limits.multiple_of not in MULTIPLES,
        f"width_multiple_of: {multiple}": multiple not in WIDTH_MULTIPLES,
    }
    for what, is_unfit in unfit.items():
        if is_unfit:
            raise PlanError(not_here(what))
    percent, unit = _share(budget) or (0, "neurons")
    return {
        "granularity": ATOMIC_GRANULARITY,
        "sparsity": percent,
        "unit": unit,
        "neurons": criterion,
        "scope": recipe.scope,
        "width": recipe.width_mode or WIDTH_MODES[0],
        "width_multiple": multiple,
        "neuron_multiple": limits.multiple_of,
        "protect": ranges(limits.protect),
        "pin": _experts_text(limits.pin),
        "drop": _experts_text(limits.drop),
    }


def _share(budget: BudgetSection | None) -> tuple[int, BudgetUnit] | None:
    """The place of the slider and what it is a share of; None where it cannot say that."""
    asked = budget and (budget.sparsity or budget.params_share)
    if not budget or not asked:
        return None
    percent = 100 * parse_sparsity(asked)
    if percent % SPARSITY_STEP or percent >= 100:
        raise PlanError(not_here(f"a share of {asked}"))
    return int(percent), "neurons" if budget.sparsity else "params"


def _experts_text(experts: Mapping[int, Sequence[int]]) -> str:
    return " ".join(f"{layer}:{ranges(ids)}" for layer, ids in experts.items() if ids)


def saved_sentence(table: pd.DataFrame, before: int) -> str:
    """One line: which width modes save nothing, and what the others do.

    Args:
        table: of `atom_sizes`.
        before: bytes of the source.
    """
    alone = table[table["mode"] == PLAN_ALONE]
    if int(alone["disk"].iloc[0]) >= before:
        return "Nothing is removed, so nothing is saved."
    rows = table[(table["mode"] != PLAN_ALONE) & (table["refused"] == "")]
    empty = [str(mode) for mode in rows.loc[rows["disk"] >= before, "mode"]]
    words = [
        f"{row['mode']} saves {1 - int(row['disk']) / before:.0%} on disk and "
        + (f"{1 - int(row['loaded']) / before:.0%}" if int(row["loaded"]) < before else "nothing")
        + " in memory."
        for row in rows.to_dict("records")
        if int(row["disk"]) < before
    ]
    if empty:
        words.insert(
            0,
            f"{' and '.join(empty)} {'save' if len(empty) > 1 else 'saves'} nothing: there every "
            "expert is as wide as the widest of the model or of its layer, filled up with zeros, "
            "and some expert keeps all its neurons.",
        )
    if empty and len(empty) == len(rows):
        words.append("Let neurons compete within each expert, which narrows all alike.")
    return " ".join(words)


@dataclass(frozen=True)
class WayToSave:
    """One value of one control that saves more than what is chosen.

    Args:
        label: for a button.
        control: its key in the address.
        value: what it should be.
    """

    label: str
    control: str
    value: str


def ways_to_save(choice: NeuronPlanChoice, table: pd.DataFrame, before: int) -> list[WayToSave]:
    """What to choose instead, where neurons go but the width mode that is chosen saves nothing.

    Args:
        choice: the controls.
        table: of `atom_sizes`.
        before: bytes of the source.
    """
    rows = table[table["refused"] == ""]
    disks = dict(zip(rows["mode"].astype(str), rows["disk"].astype(int), strict=True))
    if disks[PLAN_ALONE] >= before or disks.get(choice.width_mode, 0) < before:
        return []
    narrower = [
        WayToSave(f"Choose {mode}: saves {1 - disks[mode] / before:.0%} on disk", "width", mode)
        for mode in WIDTH_MODES
        if disks.get(mode, before) < before
    ]
    if choice.scope == AtomScope.EXPERT:
        return narrower
    label = "Narrow all experts alike: neurons compete within each expert"
    return [WayToSave(label, "scope", AtomScope.EXPERT), *narrower]
