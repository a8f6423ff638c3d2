"""The repair that a plan names, found in statistics folders and checked."""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from analysis.errors import PlanError
from analysis.model.moe_model import MoEModel
from analysis.stats.places import record_folders
from pruning.plan.plan import PruningPlan, Repair
from pruning.records.repair import REPAIRS, RepairRecord
from pruning.records.repaired_tensors import AGAIN, check_tensors, repaired_tensors


def repair_folder(record_id: str, directories: Iterable[Path], identity: str) -> Path | None:
    """The folder of a repair's files, if one of these statistics folders has its record.

    `identity` is of the model that was repaired.
    """
    folders = record_folders(directories, identity)
    records = (folder / REPAIRS / f"{record_id}.json" for folder in folders)
    return next((path.with_suffix("") for path in records if path.is_file()), None)


def stored_repair(repair: Repair) -> RepairRecord:
    """The record of a repair whose files were looked up."""
    if repair.folder is None:
        raise PlanError(f"The files of the repair {repair.record_id} are not here; {AGAIN}.")
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
    if plan.repair is None:
        return plan
    folder = repair_folder(plan.repair.record_id, directories, plan.model.identity)
    if folder is None:
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
    # Of before, a repair of a plan in fewer bits was fitted with these.
    plans = {plan.unrepaired.digest, plan.unrepaired.in_own_bits.digest}
    if record.plan_digest not in plans:
        raise PlanError(f"The repair {name} is of another plan; {AGAIN}.")
    if record.reference != repair:
        raise PlanError(
            f"The plan names a repair {name} of another content ({repair.digest[:8]}) than the one "
            f"in the statistics folder ({record.digest[:8]}); {AGAIN}."
        )
    if problem := record.wrong_file(repair.files):
        raise PlanError(f"The repair {name} is not what was made: {problem}; {AGAIN}.")
    return record


def checked_record(plan: PruningPlan, model: MoEModel) -> RepairRecord | None:
    """As `content_record`; also refuses what no repair holds."""
    record = content_record(plan)
    check_tensors(repaired_tensors(plan.repair), model)
    return record
