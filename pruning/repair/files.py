"""The files of a repair as an export reads them: the source's tensors, with other bytes."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from analysis.checkpoint import TensorEntry, read_shard
from analysis.content import file_sha256
from analysis.errors import ExportError
from analysis.fp8_matrices import fp8_matrix
from analysis.model import MoEModel
from pruning.plan import PruningPlan
from pruning.repair.record import RepairRecord
from pruning.repair.reference import Repair

_AGAIN = "make it again with `moeprune repair`"


@dataclass(frozen=True, slots=True)
class RepairedTensor:
    """A tensor of the source with the bytes of a repair."""

    entry: TensorEntry  # in the repair's file
    file: Path


def layer_files(repair: Repair) -> dict[str, Path]:
    """Name -> file of all layers that gained something, as far as they are here."""
    paths = sorted(repair.folder.glob("layer-*.safetensors")) if repair.folder else ()
    return {path.name: path for path in paths}


def repaired_tensors(repair: Repair | None) -> dict[str, RepairedTensor]:
    """Name in the source -> the tensor in a repair."""
    return {
        entry.name: RepairedTensor(entry, path)
        for path in (layer_files(repair).values() if repair else ())
        for entry in read_shard(path).tensors
    }


def stored_repair(repair: Repair) -> RepairRecord:
    """The record of a repair whose files were looked up."""
    if repair.folder is None:
        raise ExportError(f"The files of the repair {repair.record_id} are not here; {_AGAIN}.")
    return RepairRecord.read(repair.folder.with_suffix(".json"))


def checked_record(plan: PruningPlan, model: MoEModel) -> RepairRecord | None:
    """The record of a plan's repair; refuses other files than it has, and what no repair holds."""
    repair = plan.repair
    if repair is None:
        return None
    record = stored_repair(repair)
    if record.digest != repair.digest or record.plan_digest != plan.unrepaired.digest:
        raise ExportError(f"The repair {repair.record_id} is of another plan; {_AGAIN}.")
    present = layer_files(repair)
    for name in sorted(record.files.keys() | present.keys()):
        if name not in present:
            raise ExportError(f"The repair {repair.record_id} lacks {name}; {_AGAIN}.")
        if record.files.get(name) != file_sha256(present[name]):
            raise ExportError(f"{name} of the repair {repair.record_id} was changed; {_AGAIN}.")
    _check_tensors(repaired_tensors(repair), model)
    return record


def _check_tensors(repairs: Mapping[str, RepairedTensor], model: MoEModel) -> None:
    """Refuse tensors that are not down projections as the source has them, in type and shape."""
    for name, new in repairs.items():
        slot, source = model.slots.get(name), model.checkpoint.tensors.get(name)
        if slot is None or source is None or (slot.projection, slot.role) != ("down", "weight"):
            raise ExportError(f"{new.file.name} holds {name}, which no repair changes; {_AGAIN}.")
        if (new.entry.dtype, new.entry.shape) != (repaired_dtype(model, source), source.shape):
            raise ExportError(
                f"{new.file.name} holds {name} as {new.entry.dtype} {new.entry.shape}, the source "
                f"as {source.dtype} {source.shape}; {_AGAIN}."
            )


def repaired_dtype(model: MoEModel, entry: TensorEntry) -> str:
    """The dtype of a tensor of the source once it is repaired: of FP8, BF16."""
    return "BF16" if fp8_matrix(model, entry) else entry.dtype
