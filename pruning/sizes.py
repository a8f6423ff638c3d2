"""What a plan saves: bytes and parameters by part, from headers and configuration alone."""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import StrEnum

import pandas as pd

from analysis.checkpoint import TensorEntry
from analysis.families import SlotKind
from analysis.model import LocatedTensor, MoEModel
from pruning.plan import PruningPlan, fit_plan, keep_all

SIZE_COLUMNS = ("part", "before", "after", "params_before", "params_after")


class Part(StrEnum):
    """Where the bytes of a checkpoint go."""

    EXPERTS = "routed experts"
    ROUTERS = "routers"
    MLP = "shared and dense MLP"
    ATTENTION = "attention"
    EMBEDDINGS = "embeddings and head"
    OTHER = "norms and other"


# First match wins: the norms inside attention count as attention.
_PART_PATTERNS = (
    (re.compile(r"model\.layers\.\d+\.(self_attn|attention|linear_attn)\."), Part.ATTENTION),
    (re.compile(r"(model\.embed_tokens|lm_head)\."), Part.EMBEDDINGS),
    (re.compile(r"model\.layers\.\d+\.(mlp|block_sparse_moe|feed_forward)\."), Part.MLP),
)


@dataclass(frozen=True, eq=False)
class SizeReport:
    """Sizes of a checkpoint before and after a plan.

    Args:
        table: one row per part; columns SIZE_COLUMNS, bytes and parameters.
        experts_before: routed experts of all layers.
        experts_after: the same under the plan.
        active_before: parameters that one token uses: all but the experts that it is not routed to.
        active_after: the same under the plan.
    """

    table: pd.DataFrame
    experts_before: int
    experts_after: int
    active_before: int
    active_after: int

    @property
    def experts_removed(self) -> int:
        """Experts that the plan removes."""
        return self.experts_before - self.experts_after

    @property
    def bytes_before(self) -> int:
        """Bytes of all tensors."""
        return int(self.table["before"].sum())

    @property
    def bytes_after(self) -> int:
        """Bytes of the tensors that an export writes, headers not counted."""
        return int(self.table["after"].sum())

    @property
    def params_before(self) -> int:
        """Elements of all tensors on disk; tied weights count once."""
        return int(self.table["params_before"].sum())

    @property
    def params_after(self) -> int:
        """Elements of the tensors that an export writes."""
        return int(self.table["params_after"].sum())


def format_bytes(size: int) -> str:
    """Bytes for people, in binary units: 12.89 GiB, 10.9 MiB, 812 KiB, 17 B."""
    if size >= 1 << 30:
        return f"{size / (1 << 30):,.2f} GiB"
    if size >= 1 << 20:
        return f"{size / (1 << 20):.1f} MiB"
    return f"{size / (1 << 10):.0f} KiB" if size >= 1 << 10 else f"{size} B"


def _part_outside_experts(name: str) -> Part:
    return next((part for pattern, part in _PART_PATTERNS if pattern.match(name)), Part.OTHER)


def _kept_share(item: LocatedTensor, kept: Collection[int]) -> tuple[int, int]:
    """How much of a tensor stays, as numerator and denominator."""
    if item.slot.kind is SlotKind.EXPERT:
        return int(item.slot.expert in kept), 1
    return len(kept), item.entry.shape[0]


def _table(model: MoEModel, plan: PruningPlan) -> pd.DataFrame:
    """part, before, after, params_before, params_after: one row per part."""
    sums = {part: [0, 0, 0, 0] for part in Part}

    def add(part: Part, entry: TensorEntry, stays: int = 1, of: int = 1) -> None:
        values = (entry.nbytes, entry.nbytes * stays // of, entry.numel, entry.numel * stays // of)
        sums[part] = [total + value for total, value in zip(sums[part], values, strict=True)]

    # `located` is computed once per model; this runs whenever somebody moves a slider.
    located = {item.entry.name for items in model.located.values() for item in items}
    for layer, items in model.located.items():
        kept = frozenset(plan.kept.get(layer, ()))
        for item in items:
            part = Part.ROUTERS if item.slot.kind is SlotKind.ROUTER else Part.EXPERTS
            # Layers beyond the trunk are in no plan and stay whole.
            add(part, item.entry, *(_kept_share(item, kept) if kept else (1, 1)))
    for entry in model.checkpoint.tensors.values():
        if entry.name not in located:
            add(_part_outside_experts(entry.name), entry)
    rows = [(str(part), *values) for part, values in sums.items()]
    return pd.DataFrame(rows, columns=list(SIZE_COLUMNS))


def _idle_params(model: MoEModel, keep: Mapping[int, int]) -> int:
    """Parameters of the experts that a token is not routed to, when `keep` are left in a layer."""
    idle = 0
    for layer in model.layers:
        located = model.located[layer.index]
        held = sum(item.entry.numel for item in located if item.slot.kind is not SlotKind.ROUTER)
        # All experts of a layer have the same shape.
        idle += held // layer.num_experts * (keep[layer.index] - layer.top_k)
    return idle


def size_report(model: MoEModel, plan: PruningPlan | None = None) -> SizeReport:
    """Sizes before and after `plan`; without one, after equals before.

    Raises:
        PlanError: the plan is not for this model.
    """
    plan = keep_all(model) if plan is None else fit_plan(plan, model)
    table = _table(model, plan)
    before = {layer.index: layer.num_experts for layer in model.layers}
    after = {layer: len(ids) for layer, ids in plan.kept.items()}
    return SizeReport(
        table=table,
        experts_before=sum(before.values()),
        experts_after=sum(after.values()),
        active_before=int(table["params_before"].sum()) - _idle_params(model, before),
        active_after=int(table["params_after"].sum()) - _idle_params(model, after),
    )
