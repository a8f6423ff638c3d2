"""Checks of an export's own files that load no model."""

from collections.abc import Iterable, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass
from pathlib import Path

from analysis.checkpoint.companions import missing_code
from analysis.checkpoint.headers import read_index
from analysis.checkpoint.index import INDEX_NAME, Checkpoint
from analysis.checkpoint.opening import open_checkpoint
from analysis.errors import CheckpointError, UnsupportedModelError
from analysis.model.describing import describe_model
from pruning.plan.experts_per_token import top_k_text
from pruning.surgery.manifest import Manifest, file_record
from pruning.surgery.source_checks import part_problems

_SHOWN = 3


@dataclass(frozen=True, slots=True)
class Check:
    """The result of one check of an export."""

    name: str  # what was checked, in a word or two
    ok: bool
    detail: str  # one line; on failure it names the file, tensor or layer


def check_that(name: str, problems: Iterable[str], fine: str) -> Check:
    """A check that passes without problems, with `fine` as its detail."""
    phrases = list(problems)
    if not phrases:
        return Check(name, True, fine)
    more = f"; and {len(phrases) - _SHOWN} more" if len(phrases) > _SHOWN else ""
    return Check(name, False, "; ".join(phrases[:_SHOWN]) + more)


def _check_sizes(path: Path, manifest: Manifest) -> Iterator[Check]:
    expected = {shard.name: shard.bytes for shard in manifest.shards}
    files = [file for file in path.glob("*.safetensors") if file.is_file()]
    sizes = {file.name: file.stat().st_size for file in files}
    problems = [
        *(f"{name} is missing" for name in sorted(expected.keys() - sizes.keys())),
        *(f"{name} is no part of the export" for name in sorted(sizes.keys() - expected.keys())),
    ]
    yield check_that("shards", problems, f"{_shards(expected)}, none missing, none extra")
    problems = [
        f"{name} has {sizes[name]} bytes instead of {size}"
        if name in sizes
        else f"{name} is missing"
        for name, size in expected.items()
        if sizes.get(name) != size
    ]
    yield check_that("sizes", problems, f"{manifest.nbytes:,} bytes in all")


def _check_hashes(manifest: Manifest, hashes: Mapping[str, str]) -> Check:
    expected = {shard.name: shard.sha256 for shard in manifest.shards}
    problems = [
        f"{name} was changed after the export: its SHA-256 differs"
        if name in hashes
        else f"{name} is missing"
        for name, sha256 in expected.items()
        if hashes.get(name) != sha256
    ]
    return check_that("sha256", problems, f"{_shards(expected)} as written")


def _check_files(path: Path, manifest: Manifest) -> Check:
    problems = []
    for name, record in manifest.files.items():
        file = path / name
        if not file.is_file():
            problems.append(f"{name} is missing")
        elif (actual := file_record(file.read_bytes())).sha256 != record.sha256:
            problems.append(f"{name} was changed after the export: its SHA-256 differs")
        elif actual.bytes != record.bytes:
            problems.append(f"{name} has {actual.bytes} bytes instead of {record.bytes}")
    problems += [f"{phrase} is missing" for phrase in missing_code(path)]
    return check_that("files", problems, f"{len(manifest.files)} other files as they were written")


def _header_problems(checkpoint: Checkpoint, manifest: Manifest) -> list[str]:
    problems = []
    manifest_names = {shard.name: set(shard.tensors) for shard in manifest.shards}
    for shard in checkpoint.shards:
        names = {entry.name for entry in shard.tensors}
        if odd := sorted(names ^ manifest_names.get(shard.name, set())):
            problems.append(f"{shard.name} does not hold the tensors of the manifest: {odd[0]}")
        if shard.tensors and shard.size != max(entry.end for entry in shard.tensors):
            problems.append(f"{shard.name} has bytes that belong to no tensor")
    if (index := read_index(checkpoint.path)) is None:
        return problems
    unlisted = sorted(set(checkpoint.tensors) - set(index.weight_map))
    problems.extend(f"{INDEX_NAME} does not list {name}" for name in unlisted)
    total = index.metadata.get("total_size", checkpoint.nbytes)
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
        # Fails on a gap in the ids, an extra id, or routers of another size.
        model = describe_model(checkpoint)
    except (CheckpointError, UnsupportedModelError) as error:
        return [headers, Check("experts", False, str(error))]
    kept = {layer: len(ids) for layer, ids in manifest.plan.kept.items()}
    if manifest.padded:
        kept = dict.fromkeys(kept, max(kept.values()))
    counts = {layer.index: layer.num_experts for layer in model.layers}
    problems = [
        f"layer {layer} holds {counts.get(layer, 0)} experts, but the plan keeps "
        f"{kept.get(layer, 0)}"
        for layer in sorted(kept.keys() | counts.keys())
        if counts.get(layer) != kept.get(layer)
    ]
    problems.extend(part_problems(model))
    fewest, most = min(counts.values()), max(counts.values())
    spans = " to ".join(dict.fromkeys((f"0..{fewest - 1}", f"0..{most - 1}")))
    fine = f"ids {spans} in each of {len(counts)} sparse layers, as config.json says"
    checks = [headers, check_that("experts", problems, fine)]
    if planned := manifest.plan.per_token:
        said = top_k_text({layer.index: layer.top_k for layer in model.layers})
        wrong = f"config.json selects {said} experts per token, but the plan {planned}"
        problems = [wrong] if said != planned else []
        fine = f"{planned} experts per token, as the plan says"
        checks.append(check_that("top-k", problems, fine))
    return checks


def check_bytes(path: Path, manifest: Manifest, hashes: Mapping[str, str]) -> Sequence[Check]:
    """All checks of an export's own bytes, even if one fails.

    `hashes` are the SHA-256 of the files that are there.
    """
    sizes, hashed = _check_sizes(path, manifest), _check_hashes(manifest, hashes)
    return [*sizes, hashed, _check_files(path, manifest), *_check_structure(path, manifest)]


def _shards(shards: Sized) -> str:
    return f"{len(shards)} shard{'s' * (len(shards) != 1)}"
