"""The list of schedules, how to apply them by name, and notes on the result."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from analysis.errors import PlanError, unknown_name
from analysis.lazy import pd
from analysis.numbers.arrays import FloatArray, rescale
from pruning.plan.budget import rounding_note, uniform_neighbours
from pruning.plan.layer_words import ranges
from pruning.plan.selection import allocation_of
from pruning.plan.units import Removed, Units, expert_units, open_units
from pruning.schedules.spreads import (
    PATTERNS,
    Evidence,
    Schedule,
    remove_lowest,
    spread_counts,
    spread_evenly,
    spread_pattern,
)

if TYPE_CHECKING:
    from pruning.measures.curves import Sensitivity
    from pruning.plan.budget import Budget
    from pruning.plan.selection import Allocation

MEASURED = "measured"
Kind = TypeVar("Kind", FloatArray, "Sensitivity")


def _require(evidence: Kind | None) -> Kind:
    if evidence is None:
        raise ValueError("the schedule's evidence is missing")
    return evidence


SCHEDULES = {
    schedule.name: schedule
    for schedule in (
        Schedule("uniform", "Uniform", "the same fraction of every layer", spread_evenly),
        Schedule(
            "global",
            "Global",
            "all experts ranked together",
            lambda units, budget, evidence: remove_lowest(
                units, budget, _require(evidence.saliency)
            ),
            frozenset({"saliency"}),
        ),
        Schedule(
            "global-rescaled",
            "Global, rescaled",
            "all experts ranked together, saliency mapped to 0..1 in each layer",
            lambda units, budget, evidence: remove_lowest(
                units, budget, rescale(_require(evidence.saliency))
            ),
            frozenset({"saliency"}),
        ),
        Schedule(
            "frequency",
            "Frequency",
            "as many as each layer has among the experts used least",
            lambda units, budget, evidence: remove_lowest(
                units, budget, _require(evidence.frequency)
            ),
            frozenset({"frequency"}),
        ),
        *(
            Schedule(
                name, name.capitalize(), f"{name} layers lose more", partial(spread_pattern, name),
                is_nested=False,
            )
            for name in PATTERNS
        ),
        Schedule(
            MEASURED,
            "Measured",
            "as little as the measured sensitivity of each layer says",
            lambda units, budget, evidence: _require(evidence.sensitivity).spend(
                units, budget.total
            ),
            frozenset({"sensitivity"}),
            is_nested=False,
        ),
        Schedule(
            "file", "From a file", "the numbers of a file", spread_counts,
            frozenset({"counts"}), is_nested=False,
        ),
    )
}  # fmt: skip


def get_schedule(name: str) -> Schedule:
    """The schedule of this name."""
    if name not in SCHEDULES:
        raise PlanError(unknown_name("schedule", name, SCHEDULES))
    return SCHEDULES[name]


def spend(name: str, units: Units, budget: Budget, evidence: Evidence | None = None) -> Removed:
    """What each row loses: pools by the schedule of this name, within a pool the least salient."""
    spread = get_schedule(name).spread
    return units.lowest(spread(units.by_pool, budget, evidence or Evidence()))


def allocate(
    name: str, units: Units, budget: Budget, evidence: Evidence | None = None
) -> Allocation:
    """Spend a budget of experts by the schedule of this name.

    Locked layers get what the schedule gives them without fixed layers; the rest makes up for it.
    """
    limits, layers = units.limits, units.layers
    locked = sorted(limits.locked - set(limits.fixed))
    if not locked:
        return allocation_of(layers, spend(name, units, budget, evidence))
    free = expert_units(layers, replace(limits, fixed={}, locked=frozenset()))
    counts = allocation_of(layers, spend(name, free, budget, evidence)).counts
    fixed = {**limits.fixed, **{layer: counts[layer] for layer in locked}}
    settled = replace(limits, fixed=fixed, locked=frozenset())
    try:
        removed = spend(name, expert_units(layers, settled), budget, evidence)
        return allocation_of(layers, removed)
    except PlanError as error:
        # Name the counts of the locked layers, as another budget would lock them elsewhere.
        words = " ".join(f"--set {layer}={fixed[layer]}" for layer in sorted(limits.locked))
        raise PlanError(
            f"{error} Locked layers follow the budget; for these numbers put {words} in place of "
            "--lock."
        ) from error


def unbounded(name: str, units: Units, budget: Budget, evidence: Evidence) -> Removed:
    """What the schedule would remove from each layer if it could remove any number."""
    return spend(name, open_units(units.layers), budget, evidence)


SIDE_COLUMNS = ("schedule", "layer", "kept", "removed")


def side_by_side(
    units: Units, budget: Budget, evidence: Evidence | None = None
) -> tuple[pd.DataFrame, dict[str, str]]:
    """Table of SIDE_COLUMNS, and schedule -> why it cannot spend this budget.

    One row per layer for each schedule whose evidence is there, in listed order.
    """
    evidence = evidence or Evidence()
    rows: list[tuple[str, int, int, int]] = []
    refused: dict[str, str] = {}
    for name, schedule in SCHEDULES.items():
        if any(getattr(evidence, need) is None for need in schedule.needs):
            continue
        try:
            allocation = allocate(name, units, budget, evidence)
        except PlanError as error:
            refused[name] = str(error)
            continue
        rows += [
            (name, layer.index, keep, count)
            for layer, keep, count in zip(
                allocation.layers, allocation.keep, allocation.removed, strict=True
            )
        ]
    return pd.DataFrame(rows, columns=list(SIDE_COLUMNS)), refused


def allocation_notes(
    name: str,
    units: Units,
    budget: Budget,
    allocation: Allocation,
    evidence: Evidence | None = None,
) -> tuple[str, ...]:
    """The lines of `budget_notes`, and one on who can read the export."""
    notes = budget_notes(name, units, budget, allocation, evidence)
    return tuple(filter(None, (*notes, uneven_note(allocation.keep))))


def uneven_note(keep: Sequence[int]) -> str:
    """Who can read an export whose layers keep these numbers; empty if all keep one number."""
    if len(set(keep)) == 1:
        return ""
    return (
        f"Layers keep from {min(keep)} to {max(keep)} experts: only "
        "moeprune's loader, and transformers with trust_remote_code, will load the export. Serving "
        "engines need equal numbers, or `moeprune export --pad` if the router allows it."
    )


def budget_notes(
    name: str,
    units: Units,
    budget: Budget,
    allocation: Allocation,
    evidence: Evidence | None = None,
) -> tuple[str, ...]:
    """A line each on a rounded sparsity, bounds that took effect, and an uneven division."""
    unbounded_removed = unbounded(name, units, budget, evidence or Evidence())
    removed, notes = allocation.removed, []
    if rounded := rounding_note(budget, units.sizes):
        notes.append(rounded)
    if unbounded_removed != removed:
        rows = list(zip(allocation.layers, unbounded_removed, removed, strict=True))
        fewer = [layer.index for layer, want, got in rows if got < want]
        more = [layer.index for layer, want, got in rows if got > want]
        moved = sum(max(want - got, 0) for _, want, got in rows)
        notes.append(
            f"Bounds took effect: the schedule alone would remove {moved} more from "
            f"{_layer_names(fewer)} and as many fewer from {_layer_names(more)}."
        )
    if name == "uniform" and not budget.floors and not units.limits.held:
        near = uniform_neighbours(units.layers, budget.total)
        if near != (budget.total,):
            notes.append(
                f"{budget.total} experts do not divide over {len(removed)} layers, so layers "
                f"differ by {max(removed) - min(removed)}; the nearest sizes with one count "
                f"remove {' or '.join(map(str, near))}."
            )
    return tuple(notes)


def _layer_names(layers: Sequence[int]) -> str:
    return f"layer{'s' if len(layers) > 1 else ''} {ranges(layers)}"
