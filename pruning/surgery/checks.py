"""Checks of an export that load no model: its files, and its bytes against those of the source."""

import hashlib
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence, Sized
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from typing import TypeVar

import numpy as np

from analysis.checkpoint.companions import TOKENIZER_FILES, companions_of, missing_code
from analysis.checkpoint.headers import read_index
from analysis.checkpoint.index import INDEX_NAME, Checkpoint, TensorEntry
from analysis.checkpoint.opening import open_checkpoint
from analysis.errors import CheckpointError, ExportError, PlanError, UnsupportedModelError
from analysis.model.describing import describe_model
from analysis.model.moe_model import MoEModel
from analysis.nonuniform.modeling_file import MODELING_NAME
from analysis.progress import Progress
from pruning.plan.plan import fit_plan
from pruning.plan.widths import plan_widths
from pruning.surgery.expected import ExpectedTensor, expected_tensors, mapped
from pruning.surgery.manifest import Manifest, file_record
from pruning.surgery.repair_checks import repairs_of
from pruning.surgery.shards import check_located
from pruning.surgery.source_checks import part_problems

_SHOWN = 3
_MAX_WORKERS = 4
_POLL_SECONDS = 0.1
Answer = TypeVar("Answer")


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


class Reader:
    """Progress of the thread that reads a shard, and its signal to stop."""

    def __init__(self, stop: Event) -> None:
        self._stop = stop
        self.done = 0

    def goes_on(self, nbytes: int) -> bool:
        """Count bytes as read; False if the answer is no longer needed."""
        self.done += nbytes
        return not self._stop.is_set()


def ask_shards(
    names: Iterable[str], ask: Callable[[str, Reader], Answer], phase: str, total: int
) -> Generator[Progress, None, dict[str, Answer]]:
    """Call `ask` with each name and a `Reader` in threads; returns the answers by name, in order.

    However this ends, by an error or because the caller stops, no thread keeps running. `total` is
    the number of bytes to read.
    """
    stop = Event()
    readers = {name: Reader(stop) for name in names}
    with ThreadPoolExecutor(_MAX_WORKERS, "verify") as pool:
        futures = {name: pool.submit(ask, name, reader) for name, reader in readers.items()}
        try:
            pending: set[Future[Answer]] = set(futures.values())
            while pending:
                done = sum(reader.done for reader in readers.values())
                yield Progress(phase, done, total, "bytes")
                _, pending = wait(pending, _POLL_SECONDS, FIRST_EXCEPTION)
        finally:
            stop.set()
    return {name: future.result() for name, future in futures.items()}


_CHUNK_BYTES = 1 << 20


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


def _check_hashes(path: Path, manifest: Manifest) -> Generator[Progress, None, Check]:
    expected = {shard.name: shard.sha256 for shard in manifest.shards}
    present = [name for name in expected if (path / name).is_file()]

    def hashed(name: str, reader: Reader) -> str:
        sha = hashlib.sha256()
        with (path / name).open("rb", buffering=0) as file:
            while (chunk := file.read(_CHUNK_BYTES)) and reader.goes_on(len(chunk)):
                sha.update(chunk)
        return sha.hexdigest()

    hashes = yield from ask_shards(present, hashed, "hashing", manifest.nbytes)
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
    if top_k := manifest.plan.top_k:
        selected = max(layer.top_k for layer in model.layers)
        wrong = f"config.json selects {selected} experts per token, but the plan {top_k}"
        problems = [wrong] if selected != top_k else []
        checks.append(check_that("top-k", problems, f"{top_k} experts per token, as the plan says"))
    return checks


def check_bytes(path: Path, manifest: Manifest) -> Generator[Progress, None, Sequence[Check]]:
    """All checks of an export's own bytes, even if one fails."""
    sizes = _check_sizes(path, manifest)
    hashes = yield from _check_hashes(path, manifest)
    return [*sizes, hashes, _check_files(path, manifest), *_check_structure(path, manifest)]


def _shards(shards: Sized) -> str:
    return f"{len(shards)} shard{'s' * (len(shards) != 1)}"


SOURCE, TENSORS = "source", "tensors"  # names of the two checks


@dataclass(frozen=True)
class Pairs:
    """The tensors of an export and what each must be."""

    export: Path  # folder
    source: Path  # folder
    expected: Mapping[str, ExpectedTensor]  # by name
    entries: Mapping[str, TensorEntry]  # by name


def check_against_source(
    path: Path, manifest: Manifest, source: MoEModel
) -> Generator[Progress, None, tuple[Check, ...]]:
    """Two checks: names, dtypes and shapes of all tensors; if these pass, every byte."""
    if source.identity != manifest.source.identity:
        other = (
            f"{source.name} (identity {source.identity[:8]}) is not what was exported: "
            f"{manifest.source.name} (identity {manifest.source.identity[:8]})"
        )
        return (Check(SOURCE, False, other),)
    try:
        check_located(source)
        plan = fit_plan(manifest.plan, source)
        widths = plan_widths(source, plan, manifest.widths)
        repairs = repairs_of(source, plan, manifest)
        expected = expected_tensors(
            source,
            plan,
            manifest.heads,
            widths,
            padded=manifest.padded,
            dequantised=manifest.dequantised,
            repairs=repairs,
        )
        pairs = Pairs(path, source.checkpoint.path, expected, open_checkpoint(path).tensors)
    except (PlanError, ExportError, CheckpointError) as error:
        return (Check(SOURCE, False, str(error)),)
    accounted = _check_accounts(pairs, manifest, source)
    if not accounted.ok:
        return (accounted,)
    return accounted, (yield from _check_bytes(pairs))


def _check_accounts(pairs: Pairs, manifest: Manifest, source: MoEModel) -> Check:
    expected = {name: (tensor.dtype, tensor.shape) for name, tensor in pairs.expected.items()}
    actual = {name: (entry.dtype, entry.shape) for name, entry in pairs.entries.items()}
    problems = [
        f"{name} should be {expected.get(name, 'absent')}, but is {actual.get(name, 'absent')}"
        for name in sorted(expected.keys() | actual.keys())
        if expected.get(name) != actual.get(name)
    ]
    total = len(source.checkpoint.tensors)
    cut, repaired, dequantised = _counts(pairs, pairs.expected)
    stay = {tensor.source.name for tensor in pairs.expected.values()}
    copied = len(stay) - cut - repaired - dequantised
    rare = f"{repaired} repaired, " * bool(repaired) + f"{dequantised} in BF16, " * bool(
        dequantised
    )
    fine = (
        f"each of the source's {total} tensors is accounted for: {copied} copied, {cut} cut, "
        f"{rare}{total - len(stay)} dropped"
    )
    if len(expected) > len(stay):  # only an embedding has two names
        fine += "; the embedding is written again as the head"
    # Our own modeling file is written anew.
    tokenizer = [n for n in companions_of(pairs.source, TOKENIZER_FILES) if n != MODELING_NAME]
    problems += [
        f"{name} of the source has no counterpart"
        for name in tokenizer
        if name not in manifest.files
    ]
    # Counts only make sense if the tensors are right.
    problems = problems or _number_problems(pairs, manifest, source)
    return check_that(SOURCE, problems, fine)


def _counts(pairs: Pairs, names: Iterable[str]) -> tuple[int, int, int]:
    """How many of these tensors are cut, repaired, and dequantised."""
    tensors = [pairs.expected[name] for name in names]
    return (
        sum(tensor.is_cut for tensor in tensors),
        sum(tensor.is_repaired for tensor in tensors),
        sum(tensor.is_dequantised for tensor in tensors),
    )


def _number_problems(pairs: Pairs, manifest: Manifest, source: MoEModel) -> list[str]:
    """Wrong counts in the manifest: tensors of shards, and dropped shards."""
    problems = []
    for shard in manifest.shards:
        names = [name for name, entry in pairs.entries.items() if entry.shard == shard.name]
        cut, repaired, dequantised = _counts(pairs, names)
        counts = len(names) - cut - repaired - dequantised, cut, repaired, dequantised
        stated = shard.copied, shard.cut, shard.repaired, shard.dequantised
        if counts != stated:
            problems.append(
                f"{shard.name} holds {counts[0]} copied, {cut} cut, {repaired} repaired and "
                f"{dequantised} dequantised tensors, but the manifest counts "
                f"{', '.join(map(str, stated))}"
            )
    stay = {tensor.source.name for tensor in pairs.expected.values()}
    shards = {shard.name: shard.tensors for shard in source.checkpoint.shards if shard.tensors}
    dropped = {
        name: sum(tensor.name not in stay for tensor in tensors) for name, tensors in shards.items()
    }
    # New shards say 0: dropped tensors were in others.
    if any(shard.dropped for shard in manifest.shards):
        problems += [
            f"{shard.name} lost {dropped.get(shard.name, 0)} tensors, but the manifest counts "
            f"{shard.dropped} as dropped"
            for shard in manifest.shards
            if dropped.get(shard.name, 0) != shard.dropped
        ]
    emptied = [name for name, tensors in shards.items() if dropped[name] == len(tensors)]
    if sorted(emptied) != sorted(manifest.dropped_shards):
        listed = ", ".join(manifest.dropped_shards) or "none"
        problems.append(
            f"the source's shards of which nothing is left are {', '.join(emptied) or 'none'}, but "
            f"the manifest names {listed}"
        )
    return problems


def _check_bytes(pairs: Pairs) -> Generator[Progress, None, Check]:
    """Compare shard by shard, and name the first tensor that differs."""
    total = sum(entry.nbytes for entry in pairs.entries.values())
    shards: dict[str, list[str]] = {}
    for name, entry in pairs.entries.items():
        shards.setdefault(entry.shard, []).append(name)
    differences = yield from ask_shards(
        shards, lambda shard, reader: _difference(pairs, shards[shard], reader), "comparing", total
    )
    problems = filter(None, differences.values())
    cut = "the source's, or the plan's cut"
    if any(tensor.file for tensor in pairs.expected.values()):
        cut = "the source's, the plan's cut, or the repair's"
    fine = f"all {total:,} bytes of {len(pairs.entries):,} tensors are {cut}"
    if unknown := sum(not tensor.is_known for tensor in pairs.expected.values()):
        fine = (
            f"the bytes of {len(pairs.entries) - unknown} tensors are {cut}; those of {unknown} "
            "repaired ones were not compared, as the repair's files are not here: name their "
            "statistics folder with --stats-dir"
        )
    return check_that(TENSORS, list(problems)[:1], fine)


def _difference(pairs: Pairs, names: Sequence[str], reader: Reader) -> str:
    """A sentence on the first of these tensors that is wrong; empty if none is."""
    for name in names:
        tensor, entry, place = pairs.expected[name], pairs.entries[name], 0
        if not tensor.is_known:
            continue
        source = tensor.file or pairs.source / tensor.source.shard
        export = pairs.export / entry.shard
        # A few MiB at a time, flat.
        for block in (block for part in tensor.parts for block in part.blocks(source)):
            expected = block.reshape(-1)
            actual = mapped(export, entry.start + place, (expected.size,))
            if not np.array_equal(expected, actual):
                byte = place + int(np.argmax(expected != actual))
                whose = "the plan's cut" if tensor.is_cut else "a copy"
                whose = "BF16" if tensor.is_dequantised else whose
                owner = "repair" if tensor.is_repaired else "source"
                return (
                    f"{name} is not {whose} of the {owner}'s {tensor.source.name}: byte {byte} of "
                    "the tensor is the first that differs"
                )
            place += expected.size
            if not reader.goes_on(expected.size):
                return ""
    return ""
