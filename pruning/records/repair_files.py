"""The files of a repair as an export reads them: the source's tensors, with other bytes."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from analysis.checkpoint.index import TensorEntry, read_shard
from analysis.errors import ExportError, PlanError
from analysis.model.fp8_matrices import fp8_matrix
from analysis.model.moe_model import MoEModel
from pruning.plan.plan import PruningPlan
from pruning.plan.repair_reference import Repair
from pruning.records.repair import RepairRecord

_AGAIN = "make it again with `moeprune repair`"


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


def stored_repair(repair: Repair) -> RepairRecord:
    """The record of a repair whose files were looked up."""
    if repair.folder is None:
        raise PlanError(f"The files of the repair {repair.record_id} are not here; {_AGAIN}.")
    return RepairRecord.read(repair.folder.with_suffix(".json"))


def with_repair_files(plan: PruningPlan, directories: Iterable[Path]) -> PruningPlan:
    """The plan with the files of its repair, which lie in one of these statistics folders.

    Refuses a repair that is not there, or whose content is not what the plan names.
    """
    located = if_here(plan, directories)
    if located.repair and not located.repair.folder:
        raise PlanError(
            f"The plan names the repair {located.repair.record_id}, which is not in the statistics "
            "folder; make it again with `moeprune repair`, or name its folder with --stats-dir."
        )
    return located


def if_here(plan: PruningPlan, directories: Iterable[Path]) -> PruningPlan:
    """As `with_repair_files`, but a repair that is not there is left without its files."""
    if plan.repair is None or not (folder := plan.repair.place(directories)):
        return plan
    located = replace(plan, repair=replace(plan.repair, folder=folder))
    content_record(located)
    return located


def content_record(plan: PruningPlan) -> RepairRecord | None:
    """The record of a plan's repair; refuses a content that is not what the plan names."""
    repair = plan.repair
    if repair is None:
        return None
    record, name = stored_repair(repair), repair.record_id
    if record.plan_digest != plan.unrepaired.digest:
        raise PlanError(f"The repair {name} is of another plan; {_AGAIN}.")
    if record.reference != repair:
        raise PlanError(
            f"The plan names a repair {name} of another content ({repair.digest[:8]}) than the one "
            f"in the statistics folder ({record.digest[:8]}); {_AGAIN}."
        )
    if problem := record.wrong_file(repair.files):
        raise PlanError(f"The repair {name} is not what was made: {problem}; {_AGAIN}.")
    return record


def checked_record(plan: PruningPlan, model: MoEModel) -> RepairRecord | None:
    """As `content_record`; also refuses what no repair holds."""
    record = content_record(plan)
    _check_tensors(repaired_tensors(plan.repair), model)
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
