"""What a plan saves: bytes, parameters and FLOPs, from headers and configuration alone."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from analysis.arrays import IntArray
from analysis.checkpoint import TensorEntry
from analysis.families import MoELayer, SlotKind
from analysis.heads import prediction_heads
from analysis.model import LocatedTensor, MoEModel
from analysis.widths import atom_axis, expert_widths
from pruning.active import Routing, active_experts
from pruning.atoms.kept import atoms_of
from pruning.heads import heads_depend_on
from pruning.plan import PruningPlan, fit_plan, keep_all
from pruning.weights import num_weights

if TYPE_CHECKING:
    import pandas as pd

SIZE_COLUMNS = ("part", "before", "after", "params_before", "params_after")
LOADED_BYTES = {"bfloat16": 2, "float16": 2, "float32": 4}


class Part(StrEnum):
    """Where the bytes of a checkpoint go."""

    EXPERTS = "routed experts"
    ROUTERS = "routers"
    MLP = "shared and dense MLP"
    ATTENTION = "attention"  # and what stands in its place, such as Mamba
    EMBEDDINGS = "embeddings and head"
    OTHER = "norms and other"
    HEADS = "prediction heads (MTP)"  # only where there are some


# First match wins: the norms inside attention count as attention. A mixer may be either of two:
# what it holds says which.
_LAYER = r"(?:.+\.)?layers\.\d+\."
_MIXERS = "self_attn|attention|linear_attn|mamba|conv"
_BLOCKS = "mlp|block_sparse_moe|feed_forward|shared_mlp"
_IN_MIXER = "experts|shared_experts|gate|fc[12]_latent_proj|up_proj|down_proj"
_PART_PATTERNS = (
    (re.compile(rf"{_LAYER}({_MIXERS})\."), Part.ATTENTION),
    (re.compile(r"(?:.+\.)?(embed_tokens|embeddings|lm_head)\."), Part.EMBEDDINGS),
    (re.compile(rf"{_LAYER}(?:{_BLOCKS}|mixer\.(?:{_IN_MIXER}))\."), Part.MLP),
    (re.compile(rf"{_LAYER}mixer\."), Part.ATTENTION),
)


@dataclass(frozen=True, eq=False)
class SizeReport:
    """Sizes of a checkpoint before and after a plan.

    Args:
        table: one row per part; columns SIZE_COLUMNS, bytes and parameters.
        experts_before: routed experts of all layers.
        experts_after: the same under the plan.
        active_before: parameters that one token uses, expected: all but the experts that it is not
            routed to.
        active_after: the same under the plan.
        expert_flops: floating-point operations that one token spends in routed experts, expected,
            see `Active`.
        expert_flops_after: the same under the plan. Removing whole experts leaves it as it is,
            unless experts differ in width.
        is_measured: by how often experts were chosen in a calibration; otherwise as if each were
            chosen equally often, which is exact where all experts of a layer have one width.
    """

    table: pd.DataFrame
    experts_before: int
    experts_after: int
    active_before: int
    active_after: int
    expert_flops: int
    expert_flops_after: int
    is_measured: bool

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
        """Weights on disk, see `num_weights`; tied ones count once."""
        return int(self.table["params_before"].sum())

    @property
    def params_after(self) -> int:
        """Weights that an export writes."""
        return int(self.table["params_after"].sum())

    def loaded(self, dtype: str | None = None) -> tuple[int, int]:
        """Bytes of the loaded weights before and after, without activations and caches.

        Args:
            dtype: a key of LOADED_BYTES; None for the element types on disk.
        """
        if dtype is None:
            return self.bytes_before, self.bytes_after
        each = LOADED_BYTES[dtype]
        return self.params_before * each, self.params_after * each


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
    return len(kept), item.entry.shape[item.slot.axis]


def _kept_atoms(model: MoEModel, plan: PruningPlan) -> dict[int, dict[int, tuple[int, int]]]:
    """Layer -> kept expert -> neurons that stay, and all of them; layers that lose some only."""
    widths = expert_widths(model) if plan.kept_atoms else {}
    return {
        layer: {
            expert: (len(atoms_of(plan.kept_atoms, layer, expert, held)), held)
            for expert, held in enumerate(widths[layer])
            if expert in plan.kept[layer]
        }
        for layer in plan.kept_atoms
    }


def _atom_share(
    model: MoEModel, item: LocatedTensor, atoms: Mapping[int, tuple[int, int]]
) -> tuple[int, int]:
    """How much of a tensor's kept experts stays, as numerator and denominator."""
    is_router = item.slot.kind is SlotKind.ROUTER
    if not atoms or is_router or atom_axis(model.family, item.slot) is None:
        return 1, 1
    if item.slot.expert is not None:
        return atoms.get(item.slot.expert, (1, 1))
    return sum(stays for stays, _ in atoms.values()), sum(of for _, of in atoms.values())


@dataclass(frozen=True, eq=False)
class _Layer:
    """Tensors of a layer's experts and router.

    Args:
        experts: bytes and weights of the tensors that are one expert's alone; (experts, 2) int64.
        located: all of them.
        shared: those that hold several experts, and the router's.
    """

    experts: IntArray
    located: Sequence[LocatedTensor]
    shared: Sequence[LocatedTensor]


@dataclass(frozen=True, eq=False)
class _Tensors:
    """A checkpoint's tensors as sizes need them: whoever moves a slider asks for many plans.

    Args:
        layers: layer -> its tensors.
        outside: part -> bytes and weights of what no plan removes.
        heads: tensors of prediction heads.
    """

    layers: Mapping[int, _Layer]
    outside: Mapping[Part, tuple[int, int]]
    heads: Sequence[TensorEntry]


@lru_cache(maxsize=8)
def _tensors(model: MoEModel) -> _Tensors:
    names = {name for head in prediction_heads(model) for name in head.tensors}
    outside: dict[Part, tuple[int, int]] = {}
    for entry in model.unlocated:
        if entry.name not in names:
            part = _part_outside_experts(entry.name)
            held, weights = outside.get(part, (0, 0))
            outside[part] = (held + entry.nbytes, weights + num_weights(model, entry))
    return _Tensors(
        {layer.index: _layer_tensors(model, layer) for layer in model.layers},
        outside,
        [model.checkpoint.tensors[name] for name in names],
    )


def _layer_tensors(model: MoEModel, layer: MoELayer) -> _Layer:
    experts = np.zeros((layer.num_experts, 2), np.int64)
    located = model.located[layer.index]
    shared = []
    for item in located:
        if item.slot.kind is SlotKind.ROUTER or item.slot.expert is None:
            shared.append(item)
        else:
            experts[item.slot.expert] += (item.entry.nbytes, num_weights(model, item.entry))
    return _Layer(experts, located, shared)


class _Sums:
    """Bytes and weights of each part before and after a plan."""

    def __init__(self, model: MoEModel, parts: Iterable[Part]) -> None:
        self._model = model
        self.of = {part: [0, 0, 0, 0] for part in parts}

    def add(self, part: Part, before: tuple[int, int], after: tuple[int, int]) -> None:
        """Add bytes and weights."""
        sums = self.of[part]
        for place, value in enumerate((before[0], after[0], before[1], after[1])):
            sums[place] += value

    def add_tensor(self, part: Part, entry: TensorEntry, stays: int = 1, of: int = 1) -> None:
        """Add a tensor of which a share stays."""
        held = (entry.nbytes, num_weights(self._model, entry))
        self.add(part, held, (held[0] * stays // of, held[1] * stays // of))


def _table(model: MoEModel, plan: PruningPlan) -> pd.DataFrame:
    """part, before, after, params_before, params_after: one row per part."""
    import pandas as pd

    tensors = _tensors(model)
    sums = _Sums(model, (part for part in Part if tensors.heads or part is not Part.HEADS))
    atoms = _kept_atoms(model, plan)
    for layer, found in tensors.layers.items():
        _add_layer(sums, model, found, plan.kept[layer], atoms.get(layer, {}))
    heads_stay = not heads_depend_on(model, plan)
    for entry in tensors.heads:
        sums.add_tensor(Part.HEADS, entry, int(heads_stay))
    for part, held in tensors.outside.items():
        sums.add(part, held, held)
    rows = [(str(part), *values) for part, values in sums.of.items()]
    return pd.DataFrame(rows, columns=list(SIZE_COLUMNS))


def _add_layer(
    sums: _Sums,
    model: MoEModel,
    layer: _Layer,
    kept: Sequence[int],
    atoms: Mapping[int, tuple[int, int]],
) -> None:
    stay = frozenset(kept)
    # Where neurons go, each tensor keeps a share of its own.
    if not atoms:
        before, after = layer.experts.sum(0), layer.experts[list(kept)].sum(0)
        sums.add(Part.EXPERTS, (int(before[0]), int(before[1])), (int(after[0]), int(after[1])))
    for item in layer.located if atoms else layer.shared:
        part = Part.ROUTERS if item.slot.kind is SlotKind.ROUTER else Part.EXPERTS
        stays, of = _kept_share(item, stay)
        inside, width = _atom_share(model, item, atoms)
        sums.add_tensor(part, item.entry, stays * inside, of * width)


def weight_bytes(model: MoEModel, plan: PruningPlan) -> int:
    """`SizeReport.bytes_after` alone, which takes a fraction of the time of the report."""
    return int(_table(model, fit_plan(plan, model))["after"].sum())


def size_report(
    model: MoEModel, plan: PruningPlan | None = None, routing: Routing | None = None
) -> SizeReport:
    """Sizes before and after `plan`; without one, after equals before.

    Neurons that a plan removes count as gone; what is filled up with zeros again depends on the
    width mode of the export, see `pruning.surgery.width_sizes.width_options`.
    Prediction heads count as an export treats them by default, see `plan_heads`.

    Args:
        model: the source.
        plan: what stays.
        routing: how often each expert is chosen, see `counted_routing`. It matters only where
            experts of a layer differ in width; without it each is chosen equally often.
    """
    plan = keep_all(model) if plan is None else fit_plan(plan, model)
    table = _table(model, plan)
    whole = keep_all(model)
    before, after = (active_experts(model, each, routing) for each in (whole, plan))
    params = table[["params_before", "params_after"]].sum()
    experts = table.set_index("part").loc[Part.EXPERTS]
    return SizeReport(
        table=table,
        experts_before=model.num_experts,
        experts_after=sum(map(len, plan.kept.values())),
        active_before=int(params["params_before"] - experts["params_before"]) + before.params,
        active_after=int(params["params_after"] - experts["params_after"]) + after.params,
        expert_flops=before.flops,
        expert_flops_after=after.flops,
        is_measured=routing is not None,
    )
