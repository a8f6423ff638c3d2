"""The files of a repair as an export reads them: the source's tensors, with other bytes."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from analysis.checkpoint import TensorEntry, read_shard
from analysis.content import file_sha256
from analysis.errors import ExportError
from pruning.plan import PruningPlan
from pruning.repair.record import RepairRecord
from pruning.repair.reference import Repair


def layer_files(repair: Repair) -> Iterator[Path]:
    """The files of all layers that gained something."""
    if repair.folder is not None:
        yield from sorted(repair.folder.glob("layer-*.safetensors"))


def repaired_entries(repair: Repair | None) -> dict[str, TensorEntry]:
    """Name in the source -> the tensor in a repair, whose `shard` is the path of its file."""
    return {
        entry.name: replace(entry, shard=str(path.absolute()))
        for path in (layer_files(repair) if repair else ())
        for entry in read_shard(path).tensors
    }


def checked_files(plan: PruningPlan) -> Mapping[str, str]:
    """Name -> SHA-256 of the files of a plan's repair; refuses others than its record has."""
    repair = plan.repair
    if repair is None:
        return {}
    again = "make it again with `moeprune repair`"
    if repair.folder is None:
        raise ExportError(f"The files of the repair {repair.record_id} are not here; {again}.")
    record = RepairRecord.read(repair.folder.with_suffix(".json"))
    if record.digest != repair.digest or record.plan_digest != plan.unrepaired.digest:
        raise ExportError(f"The repair {repair.record_id} is of another plan; {again}.")
    present = {path.name: path for path in layer_files(repair)}
    for name in sorted(record.files.keys() | present.keys()):
        if name not in present:
            raise ExportError(f"The repair {repair.record_id} lacks {name}; {again}.")
        if record.files.get(name) != file_sha256(present[name]):
            raise ExportError(f"{name} of the repair {repair.record_id} was changed; {again}.")
    return dict(record.files)
