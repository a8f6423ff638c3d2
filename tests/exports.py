"""Plans, exports and damage to them, for tests of export and verification."""

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from analysis.checkpoint.index import INDEX_NAME
from analysis.drain import drain
from analysis.model.moe_model import MoEModel
from analysis.model.opening import load_model_index
from builders import edit_json
from pruning.plan.plan import PruningPlan, model_ref
from pruning.records.repair_files import content_record
from pruning.surgery.checks import Check
from pruning.surgery.export import ExportSettings, export_checkpoint
from pruning.surgery.head_ranking import WeighedHeads
from pruning.surgery.manifest import MANIFEST_NAME, Manifest, file_record
from pruning.surgery.one_pass import check_contents
from pruning.surgery.verify import VerifyReport, verify_export

Tensors = dict[str, Tensor]


def keeping(model: MoEModel, ids: tuple[int, ...]) -> PruningPlan:
    """Every sparse layer keeps these experts."""
    return PruningPlan(model_ref(model), {layer.index: ids for layer in model.layers})


def uneven(model) -> PruningPlan:
    """All but one expert of each group stay in every other layer, about half in the rest."""
    kept = {}
    for place, layer in enumerate(model.layers):
        size = layer.num_experts // layer.num_groups
        drop = 1 if place % 2 else size - max(2, size // 2)
        starts = range(0, layer.num_experts, size)
        kept[layer.index] = tuple(i for first in starts for i in range(first + drop, first + size))
    return PruningPlan(model_ref(model), kept)


_USUAL = {"head_ranking": WeighedHeads(), "read_repair": content_record}


def export(source: MoEModel | Path, plan: Any, out: Path, **options: Any) -> Manifest:
    """Export a model or the checkpoint of a folder; `plan` may be the ids that each layer keeps."""
    model = load_model_index(str(source)) if isinstance(source, Path) else source
    plan = keeping(model, plan) if isinstance(plan, tuple) else plan
    return drain(export_checkpoint(model, plan, out, ExportSettings(**_USUAL | options)))


def shards_of(path: Path) -> list[Path]:
    """The shards of a checkpoint in the order of their names."""
    return sorted(path.glob("*.safetensors"))


def tensors_of(path: Path) -> Tensors:
    """All tensors of a checkpoint, or of one shard, free of the file."""
    shards = shards_of(path) if path.is_dir() else [path]
    return {name: tensor.clone() for shard in shards for name, tensor in load_file(shard).items()}


def same_bytes(first: Tensor, second: Tensor) -> bool:
    """Whether tensors are of the same dtype, shape and bytes."""
    flat = (tensor.contiguous().reshape(-1).view(torch.uint8) for tensor in (first, second))
    return (first.dtype, first.shape) == (second.dtype, second.shape) and torch.equal(*flat)


def files_of(path: Path) -> dict[str, bytes]:
    """Every file below a folder, with its bytes."""
    files = (file for file in path.rglob("*") if file.is_file())
    return {str(file.relative_to(path)): file.read_bytes() for file in files}


def edit_tensors(shard: Path, change: Callable[[Tensors], Tensors]) -> None:
    """Save a shard again with what `change` makes of its tensors."""
    save_file(change(tensors_of(shard)), shard, metadata={"format": "pt"})


def with_head(source: Path, path: Path, place: str, *, experts: bool = True) -> MoEModel:
    """A copy of a model of three layers, with a head made of its last one, slightly changed."""
    shutil.copytree(source, path)
    placed: dict[str, str] = {}
    for shard in shards_of(path):
        tensors = tensors_of(shard)
        head = {
            name.replace("model.layers.2.", place): tensor * 1.01 + 0.003
            for name, tensor in tensors.items()
            if name.startswith("model.layers.2.") and (experts or ".mlp." not in name)
        }
        save_file({**tensors, **head}, shard, metadata={"format": "pt"})
        placed |= dict.fromkeys(head, shard.name)
    if (path / INDEX_NAME).is_file():
        held = json.loads((path / INDEX_NAME).read_text())["weight_map"]
        edit_json(path / INDEX_NAME, weight_map=held | placed)
    edit_json(path / "config.json", num_nextn_predict_layers=1)
    return load_model_index(str(path))


def accept_changes(out: Path) -> None:
    """Make the manifest agree with the files, as somebody who covers up would."""
    raw = json.loads((out / MANIFEST_NAME).read_text())
    for shard in raw["shards"]:
        record = file_record((out / shard["name"]).read_bytes())
        tensors = list(load_file(out / shard["name"]))
        shard |= {"bytes": record.bytes, "sha256": record.sha256, "tensors": tensors}
    for name in raw["files"]:
        record = file_record((out / name).read_bytes())
        raw["files"][name] = {"bytes": record.bytes, "sha256": record.sha256}
    (out / MANIFEST_NAME).write_text(json.dumps(raw))


def failed(out: Path, **options: Any) -> dict[str, str]:
    """Name -> detail of the checks that a verification fails; each detail is one line."""
    report = drain(verify_export(out, **options))
    assert all("\n" not in check.detail for check in report.checks)
    return {check.name: check.detail for check in report.checks if not check.ok}


def checks_against_source(path: Path, manifest: Manifest, source: MoEModel) -> tuple[Check, ...]:
    """The checks of an export's tensors, whatever its hashes are."""
    return tuple(drain(check_contents(path, manifest, source)).source)


def keeping_neurons(
    model: MoEModel,
    neurons: Mapping[int, Mapping[int, tuple[int, ...]]],
    kept: Mapping[int, tuple[int, ...]] | None = None,
    **more: Any,
) -> PruningPlan:
    """Layer -> expert -> neurons that stay; the neurons of all others stay, and all experts."""
    ref = model_ref(model)
    return PruningPlan(ref, kept or {}, granularity="neuron", kept_neurons=neurons, **more)


def verified(out: Path, **options: Any) -> VerifyReport:
    """The report of a verification that every check passes."""
    report = drain(verify_export(out, **options))
    assert report.ok, report.checks
    return report
