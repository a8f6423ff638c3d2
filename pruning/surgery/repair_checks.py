"""What a repair changes in an export, derived from source and plan alone, and its files."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from analysis.errors import ExportError
from analysis.families.base import SlotKind
from analysis.model.moe_model import MoEModel
from pruning.plan.plan import PruningPlan, layer_file
from pruning.records.repair_files import repair_folder
from pruning.records.repaired_tensors import RepairedTensor, repaired_dtype, repaired_tensors
from pruning.surgery.manifest import Manifest


def with_files(manifest: Manifest, directories: Sequence[Path]) -> Manifest:
    """The manifest, its plan with the repair's files if one of these folders has all of them."""
    repair = manifest.plan.repair
    if repair is None:
        return manifest
    identity = manifest.plan.model.identity
    folders = (repair_folder(repair.record_id, [one], identity) for one in directories)
    for folder in filter(None, folders):
        located = replace(repair, folder=folder)
        if manifest.repair_files.keys() <= located.files.keys():
            return replace(manifest, plan=replace(manifest.plan, repair=located))
    return manifest


def repairs_of(
    source: MoEModel, plan: PruningPlan, manifest: Manifest
) -> Mapping[str, RepairedTensor | None]:
    """Name in the source -> the repair's tensor; None for all of them if its files are elsewhere.

    Refuses tensors that a repair does not change.
    """
    names = _changed_names(source, plan, manifest)
    if plan.repair is None or plan.repair.folder is None:
        return dict.fromkeys(names)
    which = f"the repair {plan.repair.record_id}"
    repairs = repaired_tensors(plan.repair)
    for name in sorted(repairs.keys() ^ names):
        if name in names:
            raise ExportError(f"{which} lacks {name}")
        raise ExportError(f"{which} holds {name}, which is no down projection of a kept expert")
    for name, new in repairs.items():
        entry = source.checkpoint.tensors[name]
        if (new.entry.dtype, new.entry.shape) != (repaired_dtype(source, entry), entry.shape):
            raise ExportError(f"{which} holds {name} in another type or shape than the source")
    return repairs


def _changed_names(source: MoEModel, plan: PruningPlan, manifest: Manifest) -> frozenset[str]:
    """Weights of the down projections of all experts that stay, in the layers that have a file."""
    layers = {
        layer.index for layer in source.layers if layer_file(layer.index) in manifest.repair_files
    }
    return frozenset(
        name
        for name, slot in source.slots.items()
        if slot.layer in layers
        and slot.kind is not SlotKind.ROUTER
        and (slot.projection, slot.role) == ("down", "weight")
        and (slot.expert is None or slot.expert in plan.kept[slot.layer])
    )
