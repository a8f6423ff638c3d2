"""Checks of an export that read files and compute hashes; no model is loaded."""

import hashlib
from collections.abc import Generator, Iterable, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from threading import Event

from analysis.checkpoint import INDEX_NAME, Checkpoint, open_checkpoint
from analysis.errors import CheckpointError, ExportError, PlanError, UnsupportedModelError
from analysis.model import MoEModel, describe_model
from analysis.progress import Progress
from pruning.atoms.widths import plan_widths
from pruning.plan import fit_plan
from pruning.surgery.config import read_index
from pruning.surgery.manifest import Manifest
from pruning.surgery.shards import plan_shards

_CHUNK_BYTES = 1 << 20
_MAX_WORKERS = 4
_POLL_SECONDS = 0.1
_SHOWN = 3


@dataclass(frozen=True, slots=True)
class Check:
    """One question that was put to an export.

    Args:
        name: what was checked, in a word or two.
        ok: whether it holds.
        detail: one line; where it does not hold, it names the file, tensor or layer.
    """

    name: str
    ok: bool
    detail: str


def _check(name: str, problems: Iterable[str], fine: str) -> Check:
    found = list(problems)
    if not found:
        return Check(name, True, fine)
    more = f"; and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
    return Check(name, False, "; ".join(found[:_SHOWN]) + more)


def _check_presence(path: Path, manifest: Manifest) -> Check:
    wanted = {shard.name for shard in manifest.shards}
    held = {file.name for file in path.glob("*.safetensors")}
    problems = [
        *(f"{name} is missing" for name in sorted(wanted - held)),
        *(f"{name} is no part of the export" for name in sorted(held - wanted)),
    ]
    return _check("shards", problems, f"{len(wanted)} shards, none missing, none extra")


def _check_sizes(path: Path, manifest: Manifest) -> Check:
    problems = []
    for shard in manifest.shards:
        file = path / shard.name
        if file.is_file() and file.stat().st_size != shard.bytes:
            size = file.stat().st_size
            problems.append(f"{shard.name} has {size} bytes instead of {shard.bytes}")
    return _check("sizes", problems, f"{manifest.nbytes} bytes in all")


def _hash_file(path: Path, stop: Event, done: dict[str, int]) -> str:
    sha = hashlib.sha256()
    with path.open("rb", buffering=0) as file:
        while (chunk := file.read(_CHUNK_BYTES)) and not stop.is_set():
            sha.update(chunk)
            done[path.name] += len(chunk)
    return sha.hexdigest()


def _check_hashes(path: Path, manifest: Manifest) -> Generator[Progress, None, Check]:
    present = [shard for shard in manifest.shards if (path / shard.name).is_file()]
    done = {shard.name: 0 for shard in present}
    stop = Event()
    with ThreadPoolExecutor(_MAX_WORKERS, "verify") as pool:
        futures = {
            shard.name: pool.submit(_hash_file, path / shard.name, stop, done) for shard in present
        }
        try:
            pending: set[Future[str]] = set(futures.values())
            while pending:
                yield Progress("hashing", sum(done.values()), manifest.nbytes, "bytes")
                _, pending = wait(pending, _POLL_SECONDS, FIRST_EXCEPTION)
        finally:
            stop.set()
    problems = [
        f"{shard.name} was changed after the export: its SHA-256 differs"
        for shard in present
        if futures[shard.name].result() != shard.sha256
    ]
    return _check("sha256", problems, f"{len(present)} shards as they were written")


def _check_files(path: Path, manifest: Manifest) -> Check:
    problems = []
    for name, record in manifest.files.items():
        file = path / name
        if not file.is_file():
            problems.append(f"{name} is missing")
        elif hashlib.sha256(file.read_bytes()).hexdigest() != record.sha256:
            problems.append(f"{name} was changed after the export: its SHA-256 differs")
    return _check("files", problems, f"{len(manifest.files)} other files as they were written")


def _header_problems(checkpoint: Checkpoint, manifest: Manifest) -> list[str]:
    problems = []
    written = {shard.name: set(shard.tensors) for shard in manifest.shards}
    for shard in checkpoint.shards:
        held = {entry.name for entry in shard.tensors}
        odd = sorted(held ^ written.get(shard.name, set()))
        if odd:
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


def _expert_problems(model: MoEModel, manifest: Manifest) -> list[str]:
    kept = {layer: len(ids) for layer, ids in manifest.plan.kept.items()}
    held = {layer.index: layer.num_experts for layer in model.layers}
    return [
        f"layer {layer} holds {held.get(layer, 0)} experts, but the plan keeps {kept.get(layer, 0)}"
        for layer in sorted(kept.keys() | held.keys())
        if held.get(layer) != kept.get(layer)
    ]


def _check_structure(path: Path, manifest: Manifest) -> list[Check]:
    try:
        checkpoint = open_checkpoint(path)
    except CheckpointError as error:
        return [Check("headers", False, str(error))]
    fine = f"{len(checkpoint.tensors)} tensors, as manifest and index say"
    headers = _check("headers", _header_problems(checkpoint, manifest), fine)
    try:
        # Fails on a gap in the ids, on one too many, and on routers of another size.
        model = describe_model(checkpoint)
    except (CheckpointError, UnsupportedModelError) as error:
        return [headers, Check("experts", False, str(error))]
    counts = [layer.num_experts for layer in model.layers]
    spans = dict.fromkeys(f"0..{count - 1}" for count in (min(counts), max(counts)))
    found = " to ".join(spans)
    fine = f"ids {found} in each of {len(counts)} sparse layers, as config.json says"
    return [headers, _check("experts", _expert_problems(model, manifest), fine)]


def _check_source(path: Path, manifest: Manifest, source: MoEModel) -> Check:
    if source.identity != manifest.source.identity:
        return Check(
            "source",
            False,
            f"{source.name} (identity {source.identity[:8]}) is not what was exported: "
            f"{manifest.source.name} (identity {manifest.source.identity[:8]})",
        )
    try:
        plan = fit_plan(manifest.plan, source)
        widths = plan_widths(source, plan, manifest.widths)
        planned = plan_shards(source, plan, manifest.heads, widths)
        held = open_checkpoint(path).tensors
    except (PlanError, ExportError, CheckpointError) as error:
        return Check("source", False, str(error))
    wanted = {t.name: (t.source.dtype, t.shape) for shard in planned for t in shard.tensors}
    found = {name: (entry.dtype, entry.shape) for name, entry in held.items()}
    problems = [
        f"{name} should be {wanted.get(name, 'absent')}, but is {found.get(name, 'absent')}"
        for name in sorted(wanted.keys() | found.keys())
        if wanted.get(name) != found.get(name)
    ]
    cut = sum(shard.cut for shard in planned)
    dropped = len(source.checkpoint.tensors) - len(wanted)
    fine = (
        f"each of the source's {len(source.checkpoint.tensors)} tensors is accounted for: "
        f"{len(wanted) - cut} copied, {cut} cut, {dropped} dropped"
    )
    return _check("source", problems, fine)


def check_bytes(
    path: Path, manifest: Manifest, source: MoEModel | None
) -> Generator[Progress, None, Sequence[Check]]:
    """Put every question that bytes can answer; all are put, also when one fails.

    Args:
        path: the export.
        manifest: its manifest.
        source: what it was made from, if it is at hand.
    """
    checks = [_check_presence(path, manifest), _check_sizes(path, manifest)]
    checks.append((yield from _check_hashes(path, manifest)))
    checks.append(_check_files(path, manifest))
    checks.extend(_check_structure(path, manifest))
    if source:
        checks.append(_check_source(path, manifest, source))
    return checks
