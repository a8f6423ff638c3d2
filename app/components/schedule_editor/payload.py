"""Messages of the schedule editor to and from the browser; no streamlit."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, Field, StrictInt, ValidationError

from analysis.errors import PlanError
from pruning.plan.budget import Budget
from pruning.plan.units import Units

_MOST_LAYERS = 4096
_OTHER_FORM = "The editor sent an edit that is not one number per layer."


class _Message(BaseModel):
    """A browser message: experts kept per layer, and locked layers."""

    counts: list[StrictInt] = Field(max_length=_MOST_LAYERS)
    locked: list[StrictInt] = Field(max_length=_MOST_LAYERS)


@dataclass(frozen=True, slots=True)
class Edit:
    """An edit: experts kept by layer, and locked layers."""

    kept: Mapping[int, int]
    locked: frozenset[int]


@dataclass(frozen=True, eq=False)
class Bars:
    """Contents of the editor."""

    model: str  # identity of the model; edits of one model are not undone on another
    units: Units  # the experts that can go; no limit fixes a layer
    budget: Budget
    kept: Mapping[int, int]  # layer -> experts kept
    locked: frozenset[int] = frozenset()  # locked layers
    # layer -> experts that a uniform schedule keeps; None if impossible
    ghost: Mapping[int, int] | None = None
    terms: Mapping[str, Any] | None = None  # of predictions, see `SumError.terms`


def bars_payload(bars: Bars, last_stamp: int | None) -> dict[str, Any]:
    """JSON for the browser; lists have one entry per layer, in decoder order."""
    layers, units = bars.units.layers, bars.units
    return {
        "model": bars.model,
        "layers": [layer.index for layer in layers],
        "rules": {
            "sizes": list(units.sizes),
            "low": [size - most for size, most in zip(units.sizes, units.most, strict=True)],
            "high": [size - least for size, least in zip(units.sizes, units.least, strict=True)],
            "step": units.step,
        },
        "floors": [layer.least_kept for layer in layers],
        "counts": [bars.kept[layer.index] for layer in layers],
        "ghost": bars.ghost and [bars.ghost[layer.index] for layer in layers],
        "locked": sorted(bars.locked),
        "terms": bars.terms,
        "budget": units.size - bars.budget.total,  # experts kept
        "seen": last_stamp,
    }


def stamp_of(message: object) -> int | None:
    """Time stamp of a browser message, in its milliseconds."""
    at = message.get("at") if isinstance(message, Mapping) else None
    return at if type(at) is int and 0 < at < 1 << 53 else None


def checked_edit(
    message: object,
    units: Units,
    budget: Budget,
    before: Mapping[int, int],
    locked: Collection[int],
) -> Edit:
    """The edit in a browser message, checked against every rule."""
    try:
        sent = _Message.model_validate(message)
    except ValidationError as error:
        raise PlanError(_OTHER_FORM) from error
    counts, locks = sent.counts, sent.locked
    if len(counts) != len(units.layers):
        raise PlanError(_OTHER_FORM)
    kept = {layer.index: count for layer, count in zip(units.layers, counts, strict=True)}
    removed = [size - count for size, count in zip(units.sizes, counts, strict=True)]
    for row in units.misfits(removed):
        size = units.sizes[row]
        raise PlanError(
            f"Layer {units.layers[row].index} cannot keep {counts[row]} experts: it keeps from "
            f"{size - units.most[row]} to {size - units.least[row]} in steps of {units.step}."
        )
    if unknown := sorted(set(locks) - kept.keys()):
        raise PlanError(f"Layer {unknown[0]} cannot be locked: it has no routed experts.")
    if sum(removed) != budget.total:
        raise PlanError(
            f"These counts remove {sum(removed)} experts, but the budget is {budget.total}."
        )
    for layer_index in sorted(set(locks) & set(locked)):
        if kept[layer_index] != before[layer_index]:
            raise PlanError(
                f"Layer {layer_index} is locked at {before[layer_index]} experts; unlock it first."
            )
    return Edit(kept, frozenset(locks))
