"""Experts of zeros, which fill up layers that keep fewer, so that every layer has as many.

Engines read one number of experts for all layers. A router cannot choose such an expert where it
adds a term for each expert before it selects: a correction bias, or a bias of its matrix. Theirs
is `NEVER`. Without such a term nothing can be guaranteed: the logit of an expert is then a product
with the hidden state, which may have any sign. A softmax over all logits counts it, and shifts the
probabilities against a bias that is added afterwards (ERNIE). `can_exclude` of a family says so.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from analysis.errors import ExportError
from analysis.families.base import SlotKind
from analysis.model.moe_model import MoEModel
from pruning.plan.plan import NEURON_GRANULARITY, PruningPlan
from pruning.plan.sizes import format_bytes

NEVER: Final = -1e4  # far below any logit, and float16 still holds it
EMPTY: Final = -1  # stands for an expert of zeros among ids
Ids = Mapping[int, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class Padding:
    """What filling up adds."""

    ids: Ids  # layer -> its experts in the export: ids of the source, and EMPTY
    experts: int  # how many are EMPTY, over all layers
    nbytes: int  # bytes of their tensors and of their entries in routers

    @property
    def in_words(self) -> str:
        """Number and bytes."""
        plural = "s" if self.experts != 1 else ""
        return f"{self.experts} expert{plural} of zeros, {format_bytes(self.nbytes)}"


def padded_ids(model: MoEModel, plan: PruningPlan) -> dict[int, tuple[int, ...]]:
    """The experts of each layer as the largest has them; groups are filled up each at its end.

    The plan is complete, see `fit_plan`.
    """
    most = max(map(len, plan.kept.values()))
    padded = {}
    for layer in model.layers:
        kept, groups = plan.kept[layer.index], layer.num_groups
        count, size = len(kept) // groups, most // groups
        padded[layer.index] = tuple(
            expert
            for first in range(0, len(kept), count)
            for expert in (*kept[first : first + count], *[EMPTY] * (size - count))
        )
    return padded


def plan_padding(model: MoEModel, plan: PruningPlan) -> Padding:
    """What filling up adds; refuses a model whose routers might choose an expert of zeros."""
    if plan.granularity == NEURON_GRANULARITY:
        raise ExportError(
            "Only whole experts are filled up with zeros (--pad), but this plan removes neurons; "
            "leave --pad out: the width mode uniform gives all experts one width."
        )
    ids, nbytes = padded_ids(model, plan), 0
    for layer in model.layers:
        located, added = model.located[layer.index], ids[layer.index].count(EMPTY)
        roles = [item.slot.role for item in located if item.slot.kind is SlotKind.ROUTER]
        if added and (not model.family.can_exclude or all(map(is_matrix, roles))):
            raise ExportError(
                f"Layer {layer.index} cannot be filled up (--pad): routers of {model.family.label} "
                "have no bias that rules an expert out and leaves the others as they are; keep "
                "the same number of experts in every layer."
            )
        # Each of these tensors has one entry per expert, or is one expert's.
        grows = (item.entry.nbytes for item in located if not item.slot.holds_ids)
        nbytes += added * sum(grows) // layer.num_experts
    return Padding(ids, sum(id_.count(EMPTY) for id_ in ids.values()), nbytes)


def is_matrix(role: str) -> bool:
    """Whether a router's tensor multiplies the hidden state; else it is added before selection."""
    return role.endswith("weight")


def never(dtype: str) -> bytes:
    """`NEVER` as an element of a tensor."""
    if dtype == "BF16":  # the upper half of a float32
        return np.array(NEVER, "<f4").tobytes()[2:]
    kinds = {"F64": "<f8", "F32": "<f4", "F16": "<f2"}
    if dtype not in kinds:
        raise ExportError(f"A router's bias of type {dtype} cannot be filled up (--pad).")
    return np.array(NEVER, kinds[dtype]).tobytes()
