"""The tensors of a repair: the source's, with other bytes."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from analysis.checkpoint.headers import read_shard
from analysis.checkpoint.index import TensorEntry
from analysis.errors import ExportError
from analysis.model.fp8_matrices import fp8_matrix
from analysis.model.moe_model import MoEModel
from pruning.plan.plan import Repair

AGAIN = "make it again with `moeprune repair`"


@dataclass(frozen=True, slots=True)
class RepairedTensor:
    """A tensor of the source with the bytes of a repair."""

    entry: TensorEntry  # in the repair's file
    file: Path


def repaired_tensors(repair: Repair | None) -> dict[str, RepairedTensor]:
    """Name in the source -> the tensor in a repair."""
    return {
        entry.name: RepairedTensor(entry, path)
        for path in (repair.files.values() if repair else ())
        for entry in read_shard(path).tensors
    }


def check_tensors(repairs: Mapping[str, RepairedTensor], model: MoEModel) -> None:
    """Refuse tensors that are not down projections as the source has them, in type and shape."""
    for name, new in repairs.items():
        slot, source = model.slots.get(name), model.checkpoint.tensors.get(name)
        if slot is None or source is None or (slot.projection, slot.role) != ("down", "weight"):
            raise ExportError(f"{new.file.name} holds {name}, which no repair changes; {AGAIN}.")
        if (new.entry.dtype, new.entry.shape) != (repaired_dtype(model, source), source.shape):
            raise ExportError(
                f"{new.file.name} holds {name} as {new.entry.dtype} {new.entry.shape}, the source "
                f"as {source.dtype} {source.shape}; {AGAIN}."
            )


def repaired_dtype(model: MoEModel, entry: TensorEntry) -> str:
    """The dtype of a tensor of the source once it is repaired: of FP8, BF16."""
    return "BF16" if fp8_matrix(model, entry) else entry.dtype
