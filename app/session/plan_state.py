"""State of the plan controls: values, edits and imported files."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import streamlit as st

from analysis.errors import PlanError, UserError
from analysis.families.base import MoELayer
from analysis.model.moe_model import MoEModel
from app.components.schedule_editor import Edit, checked_edit, edit_message
from app.literal import literal
from app.loaded import CurrentPlan
from pruning.plan.budget import Budget
from pruning.plan.constraints import Constraints
from pruning.plan.layer_words import ranges
from pruning.plan.plan import EXPERT_GRANULARITY, NEURON_GRANULARITY, PruningPlan
from pruning.plan.sizes import format_bytes
from pruning.plan.units import Units, expert_units
from pruning.planning.choice import HAND, counts_text, layers_in
from pruning.records.quality import PlanLoss
from pruning.schedules import from_counts

EDITOR, TABLE = "plan.editor", "plan.table"
REFUSED = "plan.refused"  # session key: why the last edit was refused, until it was shown
_LAST_PLAN = "plan.last"  # session key: the last plan, and how it differed from the one before
_AGAIN = "links do not carry. Open it again below"
LOST = "plan.lost"  # session key: why the URL is not of the plan on screen


@dataclass(frozen=True, eq=False)
class OnScreen:
    """The plan on screen when an edit is made."""

    model: str
    units: Units
    budget: Budget
    kept: Mapping[int, int]
    locked: frozenset[int]


class NoPlan(UserError):
    """Why the controls give no plan.

    `ways` are buttons that fix it: label -> controls to set.
    """

    def __init__(self, reason: str, ways: Mapping[str, Mapping[str, Any]] | None = None) -> None:
        super().__init__(reason)
        self.ways = ways or {}


@dataclass(frozen=True, eq=False)
class Snapshot:
    """A plan that was on screen, with what the bar says of it."""

    plan: PruningPlan
    nbytes: int  # of its export
    loss: PlanLoss | None

    def is_of(self, other: "Snapshot") -> bool:
        """Whether both are of one plan, in one width."""
        return (self.plan.digest, self.nbytes) == (other.plan.digest, other.nbytes)

    def change_since(self, before: "Snapshot") -> str:
        """How it differs from the plan before, in a few words."""
        words, granularities = [], {self.plan.granularity, before.plan.granularity}
        if granularities == {EXPERT_GRANULARITY}:
            sides = [(set(before.plan.kept[n]), set(self.plan.kept[n])) for n in self.plan.kept]
            gained = sum(len(after - kept) for kept, after in sides)
            lost = sum(len(kept - after) for kept, after in sides)
            words += [f"+{gained} / -{lost} experts"] if gained or lost else []
        if not words and (more := self.nbytes - before.nbytes):
            words.append(f"{'+' if more > 0 else '-'}{format_bytes(abs(more))}")
        if self.loss and before.loss and _are_comparable(self.loss, before.loss):
            words.append(f"loss {self.loss.mean - before.loss.mean:+z.2f}")
        if not words and granularities == {EXPERT_GRANULARITY}:
            words.append("same experts")
        if not words and granularities == {NEURON_GRANULARITY} and _keep_others(self, before):
            words.append("other neurons")
        return ", ".join(words)


def _keep_others(now: Snapshot, before: Snapshot) -> bool:
    plan, other = now.plan, before.plan
    return plan.kept != other.kept or plan.kept_neurons != other.kept_neurons


def _are_comparable(loss: PlanLoss, other: PlanLoss) -> bool:
    """Whether two plans were measured in the same way, on the same corpora."""
    return loss.way == other.way and loss.change.keys() == other.change.keys()


def last_change(page: str, now: Snapshot) -> str:
    """What the last change of the plan did, while the page on which it happened is open."""
    last: tuple[Snapshot, str, str] = st.session_state.get(_LAST_PLAN, (now, "", ""))
    before, place, words = last
    if before.plan.model.identity != now.plan.model.identity:
        place, words = "", ""
    elif not before.is_of(now):
        place, words = page, now.change_since(before)
    elif place != page:
        place, words = "", ""
    st.session_state[_LAST_PLAN] = now, place, words
    return words


def sparsity_controls(percent: int) -> dict[str, str | int]:
    """Control values for a sparsity of the experts, or of the neurons."""
    return {"sparsity": percent, "budget": "sparsity"}


def imported_plan(model: MoEModel) -> CurrentPlan | None:
    """The plan imported for this model, until a control is touched."""
    plan = st.session_state.get("plan.imported")
    is_plan = isinstance(plan, CurrentPlan) and plan.plan.model.identity == model.identity
    return plan if is_plan else None


def import_plan(file: str, plan: PruningPlan) -> None:
    """Show a plan from a file until a control is touched; URLs carry it only as a pin."""
    st.session_state["plan.imported"] = CurrentPlan(plan, file=file)
    st.session_state["plan.had"] = True


def forget_import() -> None:
    """Return to the plan of the controls."""
    for key in ("plan.imported", LOST):
        st.session_state.pop(key, None)


def why_lost(shown: CurrentPlan | None, pinned: Collection[str]) -> str:
    """Why the URL is not of the plan on screen; empty if it is.

    It names the file of an imported plan, which a new session has not opened; `pinned` are the
    names of those that the URL pins.
    """
    if shown is not None and shown.file:
        st.query_params["file"] = shown.file
        st.session_state.pop(LOST, None)
    elif name := st.query_params.get("file", ""):
        del st.query_params["file"]
        # A session that had the file closed it on purpose.
        if "plan.had" not in st.session_state:
            again = "is pinned: open it on Compare" if name in pinned else _AGAIN
            st.session_state[LOST] = (
                f"The URL refers to the file {literal(name[:200])}, which {again}; until then the "
                "controls define the plan."
            )
    return str(st.session_state.get(LOST, ""))


def remember_screen(on_screen: OnScreen) -> None:
    """Remember the plan on screen for the next edit."""
    st.session_state["plan.on_screen"] = on_screen


def _on_screen() -> OnScreen | None:
    screen: OnScreen | None = st.session_state.get("plan.on_screen")
    return screen


def schedule_chosen() -> None:
    """Start By hand from the last schedule, unless there are counts."""
    forget_import()
    begins = st.session_state.get("schedule") == HAND and not st.session_state.get("counts")
    if begins and (screen := _on_screen()):
        st.session_state["counts"] = counts_text(screen.kept)


def counts_typed() -> None:
    """Switch to manual counts if some were typed."""
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
    """Handle a moved bar or lock."""
    message = edit_message(EDITOR)
    _edit(lambda on: checked_edit(message, on.units, on.budget, on.kept, on.locked))


def _edit(make: Callable[[OnScreen], Edit]) -> None:
    """Apply an edit of the plan on screen, or remember why it is refused."""
    if (screen := _on_screen()) is None:
        return
    try:
        edit = make(screen)
    except (UserError, ValueError, IndexError) as error:
        st.session_state[REFUSED] = str(error)
    else:
        keep_by_hand(edit.kept, edit.locked)


def table_key() -> str:
    """Key of the table of exact values, new after each edit so that it shows the edit."""
    return f"{TABLE}.{st.session_state.get('plan.table.edits', 0)}"


def table_edited() -> None:
    """Apply edited cells: each equals a move of a bar or a lock."""
    changes = st.session_state.get(table_key())
    st.session_state["plan.table.edits"] = st.session_state.get("plan.table.edits", 0) + 1
    if isinstance(changes, Mapping):
        _edit(lambda screen: edited_cells(screen, changes.get("edited_rows", {})))


def edited_cells(screen: OnScreen, rows: Mapping[Any, Mapping[str, Any]]) -> Edit:
    """Result of edited cells (row -> column -> value): each equals a move of a bar or a lock.

    After a move the other unlocked layers adjust in proportion to their sizes.
    """
    kept, locked, limits = dict(screen.kept), set(screen.locked), screen.units.limits
    for row, cells in rows.items():
        layer = screen.units.layers[int(row)].index
        if "locked" in cells:
            (locked.add if cells["locked"] else locked.discard)(layer)
        if cells.get("keeps") is not None:
            fixed = {index: kept[index] for index in locked} | {layer: int(cells["keeps"])}
            constraints = Constraints(limits.multiple_of, limits.protected, fixed=fixed)
            kept = from_counts(expert_units(screen.units.layers, constraints), kept).counts
    return Edit(kept, frozenset(locked))


def locked_layers(layers: Sequence[MoELayer]) -> frozenset[int]:
    """Layers that edits do not change."""
    locked = layers_in(str(st.session_state.get("locked") or ""))
    sparse = {layer.index for layer in layers}
    if unknown := sorted(locked - sparse):
        raise PlanError(
            f"Layer {unknown[0]} cannot be locked: it has no routed experts; the sparse layers "
            f"are {ranges(sparse)}."
        )
    return locked
