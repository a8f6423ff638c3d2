"""Checks of an export that read files and compute hashes; no model is loaded."""

import hashlib
from collections.abc import Generator, Iterator, Sequence, Sized
from pathlib import Path

from analysis.checkpoint import INDEX_NAME, Checkpoint, open_checkpoint
from analysis.errors import CheckpointError, UnsupportedModelError
from analysis.model import describe_model
from analysis.progress import Progress
from pruning.surgery.checks import Check, Reader, ask_shards, check_that
from pruning.surgery.index import read_index
from pruning.surgery.manifest import Manifest, file_record

_CHUNK_BYTES = 1 << 20


def _check_sizes(path: Path, manifest: Manifest) -> Iterator[Check]:
    expected = {shard.name: shard.bytes for shard in manifest.shards}
    files = [file for file in path.glob("*.safetensors") if file.is_file()]
    held = {file.name: file.stat().st_size for file in files}
    problems = [
        *(f"{name} is missing" for name in sorted(expected.keys() - held.keys())),
        *(f"{name} is no part of the export" for name in sorted(held.keys() - expected.keys())),
    ]
    yield check_that("shards", problems, f"{_shards(expected)}, none missing, none extra")
    problems = [
        f"{name} has {held[name]} bytes instead of {size}"
        for name, size in expected.items()
        if held.get(name, size) != size
    ]
    yield check_that("sizes", problems, f"{manifest.nbytes} bytes in all")


def _check_hashes(path: Path, manifest: Manifest) -> Generator[Progress, None, Check]:
    present = {
        shard.name: shard.sha256 for shard in manifest.shards if (path / shard.name).is_file()
    }

    def hashed(name: str, reader: Reader) -> str:
        sha = hashlib.sha256()
        with (path / name).open("rb", buffering=0) as file:
            while (chunk := file.read(_CHUNK_BYTES)) and reader.goes_on(len(chunk)):
                sha.update(chunk)
        return sha.hexdigest()

    found = yield from ask_shards(present, hashed, "hashing", manifest.nbytes)
    problems = [
        f"{name} was changed after the export: its SHA-256 differs"
        for name, sha256 in present.items()
        if found[name] != sha256
    ]
    return check_that("sha256", problems, f"{_shards(present)} as written")


def _check_files(path: Path, manifest: Manifest) -> Check:
    problems = []
    for name, record in manifest.files.items():
        file = path / name
        if not file.is_file():
            problems.append(f"{name} is missing")
        elif (found := file_record(file.read_bytes())).sha256 != record.sha256:
            problems.append(f"{name} was changed after the export: its SHA-256 differs")
        elif found.bytes != record.bytes:
            problems.append(f"{name} has {found.bytes} bytes instead of {record.bytes}")
    return check_that("files", problems, f"{len(manifest.files)} other files as they were written")


def _header_problems(checkpoint: Checkpoint, manifest: Manifest) -> list[str]:
    problems = []
    written = {shard.name: set(shard.tensors) for shard in manifest.shards}
    for shard in checkpoint.shards:
        held = {entry.name for entry in shard.tensors}
        if odd := sorted(held ^ written.get(shard.name, set())):
            problems.append(f"{shard.name} does not hold the tensors of the manifest: {odd[0]}")
        if shard.tensors and shard.size != max(entry.end for entry in shard.tensors):
            problems.append(f"{shard.name} has bytes that belong to no tensor")
    if (index := read_index(checkpoint.path)) is None:
        return problems
    unlisted = sorted(set(checkpoint.tensors) - set(index["weight_map"]))
    problems.extend(f"{INDEX_NAME} does not list {name}" for name in unlisted)
    total = index.get("metadata", {}).get("total_size", checkpoint.nbytes)
    if total != checkpoint.nbytes:
        problems.append(f"{INDEX_NAME} gives {total} bytes in all instead of {checkpoint.nbytes}")
    return problems


def _check_structure(path: Path, manifest: Manifest) -> list[Check]:
    try:
        checkpoint = open_checkpoint(path)
    except CheckpointError as error:
        return [Check("headers", False, str(error))]
    fine = f"{len(checkpoint.tensors)} tensors, as manifest and index say"
    headers = check_that("headers", _header_problems(checkpoint, manifest), fine)
    try:
        # Fails on a gap in the ids, on one too many, and on routers of another size.
        model = describe_model(checkpoint)
    except (CheckpointError, UnsupportedModelError) as error:
        return [headers, Check("experts", False, str(error))]
    kept = {layer: len(ids) for layer, ids in manifest.plan.kept.items()}
    held = {layer.index: layer.num_experts for layer in model.layers}
    problems = [
        f"layer {layer} holds {held.get(layer, 0)} experts, but the plan keeps {kept.get(layer, 0)}"
        for layer in sorted(kept.keys() | held.keys())
        if held.get(layer) != kept.get(layer)
    ]
    fewest, most = min(held.values()), max(held.values())
    spans = " to ".join(dict.fromkeys((f"0..{fewest - 1}", f"0..{most - 1}")))
    fine = f"ids {spans} in each of {len(held)} sparse layers, as config.json says"
    return [headers, check_that("experts", problems, fine)]


def check_bytes(path: Path, manifest: Manifest) -> Generator[Progress, None, Sequence[Check]]:
    """Put every question to an export that bytes can answer; all are put, also when one fails."""
    sizes = _check_sizes(path, manifest)
    hashes = yield from _check_hashes(path, manifest)
    return [*sizes, hashes, _check_files(path, manifest), *_check_structure(path, manifest)]


def _shards(shards: Sized) -> str:
    return f"{len(shards)} shard{'s' * (len(shards) != 1)}"
