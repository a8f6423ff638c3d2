"""State of the plan controls: what they say, and what edits and imported files make of them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import streamlit as st

from analysis.errors import PlanError, UserError
from analysis.families import MoELayer
from analysis.model import MoEModel
from app.components.schedule_editor import Edit, checked_edit, edit_message
from pruning.constraints import Constraints
from pruning.plan import PruningPlan
from pruning.planning.planning import (
    HAND,
    MULTIPLES,
    SCHEDULE_NAMES,
    CurrentPlan,
    PlanChoice,
    counts_text,
    layers_in,
    ranges,
)
from pruning.schedules import Spending, from_counts

EDITOR, TABLE = "plan.editor", "plan.table"
# Declared to each widget as well, see `app.session.state.DEFAULTS`.
DEFAULTS: dict[str, Any] = {
    "schedule": "uniform",
    "multiple": 1,
    "protect": "",
    "counts": "",
    "locked": "",
    "searched": "",
}


@dataclass(frozen=True, eq=False)
class OnScreen:
    """What an edit is held against: the plan that was on screen when it was made."""

    model: str
    spending: Spending
    kept: Mapping[int, int]
    locked: frozenset[int]


@dataclass(frozen=True, eq=False)
class ImportedPlan:
    """A plan from a file, which no address can carry."""

    file: str
    plan: PruningPlan


def chosen_plan() -> PlanChoice:
    """What the controls say; the first value of each where it is none that they offer."""
    said = {key: st.session_state.get(key, first) for key, first in DEFAULTS.items()}
    return PlanChoice(
        schedule=said["schedule"] if said["schedule"] in SCHEDULE_NAMES else "uniform",
        multiple_of=said["multiple"] if said["multiple"] in MULTIPLES else 1,
        protect=str(said["protect"] or ""),
        counts=str(said["counts"] or ""),
        locked=str(said["locked"] or ""),
        searched=str(said["searched"] or ""),
    )


def imported_plan(model: MoEModel) -> ImportedPlan | None:
    """The plan that was imported for this model, if it is still the one on screen."""
    found = st.session_state.get("plan.imported")
    if isinstance(found, ImportedPlan) and found.plan.model.identity == model.identity:
        return found
    return None


def import_plan(file: str, plan: PruningPlan) -> None:
    """Show a plan from a file until a control of the plan is touched."""
    st.session_state["plan.imported"] = ImportedPlan(file, plan)


def forget_import() -> None:
    """What the controls say is meant."""
    st.session_state.pop("plan.imported", None)


def note_plan(shown: CurrentPlan) -> None:
    """Remember what the Plan and Export pages show, for pages without their controls."""
    st.session_state["plan.noted"] = shown


def noted_plan(model: MoEModel) -> CurrentPlan | None:
    """What they showed last in this session, if it is of this model."""
    found = st.session_state.get("plan.noted")
    if isinstance(found, CurrentPlan) and found.plan.model.identity == model.identity:
        return found
    return None


def remember_screen(on_screen: OnScreen) -> None:
    """Note what the next edit will be held against."""
    st.session_state["plan.on_screen"] = on_screen


def take_refusal() -> str:
    """Why the last edit was not made; empty where it was. Said once."""
    return str(st.session_state.pop("plan.refused", ""))


def refuse(reason: str) -> None:
    """Say on the next run why something was not done."""
    st.session_state["plan.refused"] = reason


def schedule_chosen() -> None:
    """By hand begins where the last schedule was, unless there are counts already."""
    forget_import()
    seen = st.session_state.get("plan.on_screen")
    begins = st.session_state.get("schedule") == HAND and not st.session_state.get("counts")
    if begins and isinstance(seen, OnScreen):
        st.session_state["counts"] = counts_text(seen.kept)


def counts_typed() -> None:
    """Counts were typed: they are meant."""
    forget_import()
    if st.session_state.get("counts"):
        st.session_state["schedule"] = HAND


def keep_by_hand(kept: Mapping[int, int], locked: frozenset[int]) -> None:
    """Show these counts."""
    forget_import()
    st.session_state["schedule"] = HAND
    st.session_state["counts"] = counts_text(kept)
    st.session_state["locked"] = ranges(locked)


def editor_edited() -> None:
    """A bar or a lock was moved in the browser."""
    seen = st.session_state.get("plan.on_screen")
    if not isinstance(seen, OnScreen):
        return
    try:
        edit = checked_edit(edit_message(EDITOR), seen.spending, seen.kept, seen.locked)
    except PlanError as error:
        refuse(str(error))
        return
    keep_by_hand(edit.kept, edit.locked)


def table_key() -> str:
    """Key of the table of exact values: a new one after each edit, which it then shows."""
    return f"{TABLE}.{st.session_state.get('plan.table.edits', 0)}"


def table_edited() -> None:
    """Cells of the table were changed: each as a move of a bar, or of a lock."""
    seen = st.session_state.get("plan.on_screen")
    changes = st.session_state.get(table_key())
    st.session_state["plan.table.edits"] = st.session_state.get("plan.table.edits", 0) + 1
    if not isinstance(seen, OnScreen) or not isinstance(changes, Mapping):
        return
    try:
        edit = edited_cells(seen, changes.get("edited_rows", {}))
    except (UserError, ValueError, IndexError) as error:
        refuse(str(error))
        return
    keep_by_hand(edit.kept, edit.locked)


def edited_cells(seen: OnScreen, rows: Mapping[Any, Mapping[str, Any]]) -> Edit:
    """What comes of edited cells, row -> column -> value: each as a move of a bar, or of a lock."""
    kept, locked = dict(seen.kept), set(seen.locked)
    for row, cells in rows.items():
        layer = seen.spending.layers[int(row)].index
        if "locked" in cells:
            (locked.add if cells["locked"] else locked.discard)(layer)
        if cells.get("keeps") is not None:
            kept = moved(seen.spending, kept, locked - {layer}, layer, int(cells["keeps"]))
    return Edit(kept, frozenset(locked))


def moved(
    spending: Spending,
    kept: Mapping[int, int],
    locked: set[int],
    layer: int,
    wanted: int,
) -> dict[int, int]:
    """Counts after one layer was set; the unlocked others give or take, in proportion to size."""
    limits = spending.constraints
    fixed = {**{each: kept[each] for each in locked}, layer: wanted}
    asked = Constraints(multiple_of=limits.multiple_of, protected=limits.protected, fixed=fixed)
    return from_counts(spending.layers, kept, asked).counts


def locked_layers(choice: PlanChoice, layers: Sequence[MoELayer]) -> frozenset[int]:
    """Layers that edits leave alone."""
    locked = layers_in(choice.locked)
    known = {layer.index for layer in layers}
    if unknown := sorted(locked - known):
        raise PlanError(
            f"Layer {unknown[0]} cannot be locked: it has no routed experts; the sparse layers "
            f"are {ranges(known)}."
        )
    return locked
