"""Exports a smaller checkpoint: finished, or not there at all.

Everything is written to `<out>.partial` on the same file system, and renamed once at the end. The
manifest is written last, so its presence means that the export is finished.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from filelock import FileLock, Timeout

from analysis.checkpoint.companions import SETTINGS_FILES, companions_of
from analysis.checkpoint.index import CONFIG_NAME, INDEX_NAME
from analysis.errors import ExportError, UnsupportedModelError
from analysis.families.base import WIDTHS_KEY
from analysis.files.durable import PARTIAL, make_folder, partial_of, sync_folder, unwritable
from analysis.files.home import from_home
from analysis.files.shipped import tool_version
from analysis.model.moe_model import MoEModel
from analysis.nonuniform.modeling_file import MODELING_NAME, auto_map, modeling_file
from analysis.progress import Costs, Parts, Progress, cost
from pruning.plan.heads import HeadChoice, HeadPlan, HeadRanking
from pruning.plan.plan import KEEP_LIST_NAME, PruningPlan, fit_plan
from pruning.plan.sizes import format_bytes
from pruning.plan.widths import WidthChoice, WidthPlan, plan_widths
from pruning.records.repaired_tensors import check_tensors, repaired_tensors
from pruning.serving.engines import Readers, contents_of, readers, verdicts
from pruning.surgery.card import CARD_NAME, StoredRepair, model_card
from pruning.surgery.config import in_bfloat16, own_sizes, pruned_config
from pruning.surgery.dequantising import Dequantisation, plan_dequantisation
from pruning.surgery.heads import plan_heads
from pruning.surgery.manifest import MANIFEST_NAME, Manifest, SourceRecord, library_versions
from pruning.surgery.module_names import experts_in_shards, renumbered_file
from pruning.surgery.padding import Padding, plan_padding
from pruning.surgery.shards import PlannedShard, new_index, plan_shards, pruned_index, reshard
from pruning.surgery.source_checks import check_source
from pruning.surgery.tokenizer_settings import TOKENIZER_SETTINGS, for_older_readers
from pruning.surgery.writing import write_file, write_shards

if TYPE_CHECKING:
    from pruning.records.cost import PlanCost
    from pruning.records.verdict import ShipVerdict

RECIPE_NAME = "recipe.yaml"
_ONE_SHARD = 1 << 62  # bytes
_HASHED_BYTES = 1 << 22  # at a time
_SLACK_BYTES = 1 << 20  # directory entries, manifest and rounding to blocks


@dataclass(frozen=True, slots=True)
class ExportSettings:
    """Choices besides the plan."""

    heads: HeadChoice | None = None  # prediction heads; None for the safe default of `plan_heads`
    head_ranking: HeadRanking | None = None  # of their experts; only for heads that are pruned
    revision: str = ""  # of the source, for the manifest
    plan_source: SourceRecord | None = None  # see `Manifest`
    hash_source: bool = False  # also record the SHA-256 of the whole source in the manifest
    recipe: bytes = b""  # content of the export's recipe file, which is copied into it
    # How widths of experts are stored if neurons are removed; None for one width for all.
    widths: WidthChoice | None = None
    # New shards, none larger than this unless it holds a single tensor; None to keep the layout.
    max_shard_bytes: int | None = None
    # Fill up layers that keep fewer experts with experts of zeros, see `padding`.
    pad: bool = False
    dequantise: bool = False  # write FP8 in BF16
    cost: PlanCost | None = None  # of the plan, if plans of the model were measured; for the card
    # The verdict on an export of these bytes that these programs load.
    judge: Callable[[int, Readers], ShipVerdict | None] | None = None
    # Reads the record of the plan's repair and checks its files; required for a repaired plan.
    read_repair: Callable[[PruningPlan], StoredRepair | None] | None = None
    keep_list: bool = False  # also write KEEP_LIST_NAME: layer -> original ids of the kept experts


@dataclass(frozen=True, eq=False)
class PreparedExport:
    """An export that was checked but not written."""

    model: MoEModel  # the source
    plan: PruningPlan  # complete, see `fit_plan`
    heads: HeadPlan
    widths: WidthPlan | None  # if neurons are removed
    padding: Padding | None  # if experts of zeros are asked for
    dequantisation: Dequantisation | None  # if FP8 is written in BF16
    out: Path  # absolute
    shards: tuple[PlannedShard, ...]
    files: dict[str, bytes]  # other files by name relative to `out`, without card and manifest
    card: bytes  # README.md
    verdict: ShipVerdict | None  # whether it may be shipped, if `ExportSettings.judge` is there

    @property
    def tensor_bytes(self) -> int:
        """Bytes of all tensors, without headers."""
        return sum(tensor.nbytes for shard in self.shards for tensor in shard.tensors)

    @property
    def nbytes(self) -> int:
        """Bytes that the export needs on disk, with some slack."""
        names = sum(len(tensor.name) + 8 for shard in self.shards for tensor in shard.tensors)
        small = sum(map(len, self.files.values())) + len(self.card) + names
        return sum(shard.nbytes for shard in self.shards) + small + _SLACK_BYTES


def prepare_export(
    model: MoEModel, plan: PruningPlan, out: Path, options: ExportSettings | None = None
) -> PreparedExport:
    """Check everything that can be checked without writing."""
    check_place(Path(os.path.realpath(from_home(out))), model.checkpoint.path)
    return planned_export(model, plan, out, options or ExportSettings())


def planned_export(
    model: MoEModel, plan: PruningPlan, out: Path, options: ExportSettings
) -> PreparedExport:
    """The same wherever `out` is, and even if it is taken."""
    plan = fit_plan(plan, model)
    check_source(model, plan.kept, options.heads)
    repair = _checked_repair(model, plan, options)
    target = Path(os.path.realpath(from_home(out)))
    widths = plan_widths(model, plan, options.widths)
    heads = plan_heads(model, plan, options.heads, widths, options.head_ranking)
    padding = plan_padding(model, plan) if options.pad else None
    if padding and not padding.experts:
        padding = None  # every layer keeps as many
    dequantisation = plan_dequantisation(
        model, widths, is_asked_for=options.dequantise, is_repaired=repair is not None
    )
    shards = plan_shards(model, plan, heads, widths, padding, dequantisation)
    most = options.max_shard_bytes
    if most is None and len(shards) > 1 and not (model.checkpoint.path / INDEX_NAME).is_file():
        # Heads of a file of their own join the single file, which readers take without an index.
        most = _ONE_SHARD
    if most:
        shards = reshard(model, shards, most)
    # In writing order: the index after the configuration, both after the rest.
    files = _companions(model, plan, options)
    experts = experts_in_shards(shards)
    for name in files.keys() & SETTINGS_FILES:
        files[name] = renumbered_file(files[name], experts)
    config = pruned_config(model, plan, heads, widths, padded=padding is not None)
    if dequantisation:
        config = in_bfloat16(config, model.family)
    config = renumbered_file(config, experts, is_config=True)
    files |= _modeling_file(model, json.loads(config))
    files[CONFIG_NAME] = config
    if index := new_index(shards) if most else pruned_index(model, shards):
        files[INDEX_NAME] = index
    recipe = options.recipe.decode()
    num_bytes = sum(tensor.nbytes for shard in shards for tensor in shard.tensors)
    keeps_heads = heads.choice is not HeadChoice.DROP
    contents = contents_of(model, plan, widths, padded=bool(padding), keeps_heads=keeps_heads)
    contents = contents.dequantised() if dequantisation else contents
    verdict = options.judge(num_bytes, readers(verdicts(contents))) if options.judge else None
    card = model_card(
        model,
        plan,
        heads,
        recipe,
        widths,
        padding,
        repair,
        options.cost,
        num_bytes=num_bytes,
        verdict=verdict,
        in_bf16=dequantisation is not None,
        heads_ranked_by=options.head_ranking.words if options.head_ranking else "",
    )
    return PreparedExport(
        model, plan, heads, widths, padding, dequantisation, target, shards, files, card, verdict
    )


def _checked_repair(
    model: MoEModel, plan: PruningPlan, options: ExportSettings
) -> StoredRepair | None:
    """The record of a plan's repair, whose files hold what the plan names and a repair may."""
    if plan.repair is None:
        return None
    if options.read_repair is None:
        raise ExportError(f"Nothing reads the repair {plan.repair.record_id}; give `read_repair`.")
    record = options.read_repair(plan)
    check_tensors(repaired_tensors(plan.repair), model)
    return record


def _modeling_file(model: MoEModel, config: Mapping[str, Any]) -> dict[str, bytes]:
    """The file with classes for layers of individual sizes, if the configuration names them."""
    sizes = own_sizes(config, model.family)
    if sizes and model.family.discovered:
        # Imported here, as the dashboard imports this module and must start without torch.
        from analysis.nonuniform.loading import check_buildable

        try:
            check_buildable(model.family, config)
        except UnsupportedModelError as error:
            raise ExportError(
                f"{error} Keep the same number of experts in every layer (schedule uniform), and "
                "no neurons removed, so that the model's own code reads the export."
            ) from error
    if not (sizes and auto_map(model.family)):
        return {}
    return {MODELING_NAME: modeling_file(model.family, widths=WIDTHS_KEY in sizes).encode()}


def _companions(model: MoEModel, plan: PruningPlan, options: ExportSettings) -> dict[str, bytes]:
    source = model.checkpoint.path
    files = {name: (source / name).read_bytes() for name in companions_of(source)}
    # The modeling file of an already pruned source does not fit these counts.
    files.pop(MODELING_NAME, None)
    if TOKENIZER_SETTINGS in files:
        files[TOKENIZER_SETTINGS] = for_older_readers(files[TOKENIZER_SETTINGS])
    if options.keep_list:
        kept = (f'"{layer}": {json.dumps(ids)}' for layer, ids in plan.kept.items())
        files[KEEP_LIST_NAME] = ("{\n" + ",\n".join(kept) + "\n}\n").encode()
    if options.recipe:
        files[RECIPE_NAME] = options.recipe
    return files


def check_place(out: Path, source: Path) -> None:
    """Refuse an output folder that is taken, or lies in the checkpoint or below a file."""
    if out.name.endswith(PARTIAL):
        raise ExportError(
            f"{out}: names that end in {PARTIAL} are for unfinished exports; choose another."
        )
    if out.is_file() or (out.is_dir() and any(out.iterdir())):
        what = "a file" if out.is_file() else "not empty"
        raise ExportError(f"{out} is {what}; give a new or empty directory for the export.")
    if file := next((folder for folder in out.parents if folder.is_file()), None):
        raise ExportError(f"{out} cannot be made, as {file} is a file; choose another directory.")
    if out.resolve().is_relative_to(source.resolve()):
        raise ExportError(
            f"{out} lies inside the checkpoint {source}; choose a directory outside of it."
        )
    # The draft lies next to the folder, which then takes its place.
    if reason := unwritable(out.parent):
        raise ExportError(f"{out} cannot be written ({reason}); choose another directory.")


@contextmanager
def _partial_directory(prepared: PreparedExport) -> Iterator[Path]:
    """An empty `<out>.partial` for this process only, removed at the end.

    Leftovers of a killed export are removed first.
    """
    out = prepared.out
    partial = partial_of(out)
    make_folder(out.parent)
    # Not thread-local: another thread may close the generator.
    lock = FileLock(f"{partial}.lock", blocking=False, thread_local=False)
    try:
        lock.acquire()
    except Timeout as error:
        raise ExportError(
            f"Another export to {out} is running; wait for its end or choose another directory."
        ) from error
    try:
        if partial.exists():
            shutil.rmtree(partial)
        has, needs = shutil.disk_usage(out.parent).free, prepared.nbytes
        if has < needs:
            raise ExportError(
                f"The export needs {format_bytes(needs)}, but the file system of {out.parent} has "
                f"{format_bytes(has)} free; free some space or choose another directory."
            )
        partial.mkdir()
        yield partial
    finally:
        shutil.rmtree(partial, ignore_errors=True)
        # Removed while held; filelock notices and takes a new file. A failing disk keeps the file,
        # which must not hide why the export ended, nor keep the lock.
        with suppress(OSError):
            Path(lock.lock_file).unlink(missing_ok=True)
        lock.release()


def export_checkpoint(
    model: MoEModel, plan: PruningPlan, out: Path, options: ExportSettings | None = None
) -> Generator[Progress, None, Manifest]:
    """Write the pruned checkpoint to `out`, a new or empty directory; returns the manifest.

    If the caller closes the generator, or on any error, nothing is left. A kill leaves
    `<out>.partial`, which the next export removes.
    """
    options = options or ExportSettings()
    prepared = prepare_export(model, plan, out, options)
    try:
        with _partial_directory(prepared) as partial:
            parts = _parts(prepared, options)
            manifest = yield from parts.by_phase(_write_export(prepared, options, partial))
            # One rename that survives a power cut.
            for folder in sorted({path.parent for path in partial.rglob("*")}):
                sync_folder(folder)
            try:
                partial.rename(prepared.out)
            except OSError as error:
                # The directory was filled while the export ran.
                reason = error.strerror or error
                raise ExportError(
                    f"{prepared.out} cannot take the finished export: {reason}."
                ) from error
            sync_folder(prepared.out.parent)
    except OSError as error:
        raise ExportError(
            f"The export to {prepared.out} failed: {error.strerror or error}."
        ) from error
    return manifest


def _parts(prepared: PreparedExport, options: ExportSettings) -> Parts:
    """The bytes to hash and to write."""
    hashed = sum(shard.size for shard in prepared.model.checkpoint.shards)
    parts: dict[str, Costs] = {"writing": {"write": cost("write", prepared.tensor_bytes)}}
    if options.hash_source:
        parts["hashing the source"] = {"hash": cost("hash", hashed)}
    return Parts(parts)


def _write_export(
    prepared: PreparedExport, options: ExportSettings, partial: Path
) -> Generator[Progress, None, Manifest]:
    source = prepared.model.checkpoint
    sha, done, total = hashlib.sha256(), 0, sum(shard.size for shard in source.shards)
    buffer = memoryview(bytearray(_HASHED_BYTES if options.hash_source else 0))
    for shard in source.shards if options.hash_source else ():  # in the order of their names
        with (source.path / shard.name).open("rb", buffering=0) as file:
            while count := file.readinto(buffer):
                sha.update(buffer[:count])
                done += count
                yield Progress("hashing the source", done, total, "bytes")
    content = sha.hexdigest() if options.hash_source else ""
    shards = yield from write_shards(prepared.shards, source.path, partial)
    write_file(partial / CARD_NAME, prepared.card)
    files = {name: write_file(partial / name, content) for name, content in prepared.files.items()}
    kept = {tensor.source.shard for shard in prepared.shards for tensor in shard.tensors}
    # Again, now that its bytes were read.
    repair = _checked_repair(prepared.model, prepared.plan, options)
    manifest = Manifest(
        source=SourceRecord(
            prepared.model.name, prepared.model.identity, options.revision, content
        ),
        plan_source=options.plan_source,
        plan=prepared.plan,
        heads=prepared.heads,
        widths=prepared.widths.choice if prepared.widths else None,
        padded=prepared.padding is not None,
        dequantised=prepared.dequantisation is not None,
        repair_files=repair.files if repair else {},
        assumptions=prepared.model.family.assumptions,
        shards=shards,
        files=files,
        dropped_shards=tuple(shard.name for shard in source.shards if shard.name not in kept),
        tool_version=tool_version(),
        libraries=library_versions(),
    )
    write_file(partial / MANIFEST_NAME, manifest.to_json().encode())
    return manifest
