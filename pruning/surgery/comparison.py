"""What every tensor of an export must be, and what the manifest must say of them."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from analysis.checkpoint.companions import TOKENIZER_FILES, companions_of
from analysis.checkpoint.index import TensorEntry
from analysis.checkpoint.opening import open_checkpoint
from analysis.errors import CheckpointError, ExportError, PlanError
from analysis.files.content import file_sha256
from analysis.model.moe_model import MoEModel
from analysis.nonuniform.modeling_file import MODELING_NAME
from pruning.plan.plan import fit_plan
from pruning.plan.widths import plan_widths
from pruning.surgery.checks import Check, check_that
from pruning.surgery.expected import ExpectedTensor, expected_tensors
from pruning.surgery.manifest import Manifest
from pruning.surgery.repair_checks import repairs_of
from pruning.surgery.shards import check_located

SOURCE, TENSORS = "source", "tensors"  # names of the two checks


@dataclass(frozen=True)
class Pairs:
    """The tensors of an export and what each must be."""

    export: Path  # folder
    source: Path  # folder
    expected: Mapping[str, ExpectedTensor]  # by name
    entries: Mapping[str, TensorEntry]  # by name

    @cached_property
    def by_shard(self) -> Mapping[str, Sequence[TensorEntry]]:
        """The tensors of each shard of the export, in the order of their bytes."""
        shards: dict[str, list[TensorEntry]] = {}
        for entry in self.entries.values():
            shards.setdefault(entry.shard, []).append(entry)
        return shards

    def sentence(self, name: str, byte: int) -> str:
        """What is said of a tensor whose first byte that differs is this one."""
        tensor = self.expected[name]
        whose = "the plan's cut" if tensor.is_cut else "a copy"
        whose = "BF16" if tensor.is_dequantised else whose
        owner = "repair" if tensor.is_repaired else "source"
        return (
            f"{name} is not {whose} of the {owner}'s {tensor.source.name}: byte {byte} of "
            "the tensor is the first that differs"
        )


def compared_tensors(
    path: Path, manifest: Manifest, source: MoEModel
) -> tuple[Check, Pairs | None]:
    """Check names, dtypes and shapes of all tensors; if they pass, what is to be compared."""
    if source.identity != manifest.source.identity:
        other = (
            f"{source.name} (identity {source.identity[:8]}) is not what was exported: "
            f"{manifest.source.name} (identity {manifest.source.identity[:8]})"
        )
        return Check(SOURCE, False, other), None
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
        return _changed_repair(manifest) or Check(SOURCE, False, str(error)), None
    accounted = _check_accounts(pairs, manifest, source)
    if not accounted.ok:
        return _changed_repair(manifest) or accounted, None
    return accounted, pairs


def _changed_repair(manifest: Manifest) -> Check | None:
    """What explains any other problem: a repair that is not the one that was exported."""
    repair = manifest.plan.repair
    files = repair.files if repair and repair.folder else {}
    return check_repair(manifest, {path: file_sha256(path) for path in files.values()})


def check_repair(manifest: Manifest, hashes: Mapping[Path, str]) -> Check | None:
    """The failed check of a repair whose files have other hashes than those that were exported."""
    repair = manifest.plan.repair
    for path, sha256 in hashes.items():
        if repair and manifest.repair_files.get(path.name) != sha256:
            detail = (
                f"{path.name} of the repair {repair.record_id} is not the one that was exported; "
                "name the statistics folder that has it with --stats-dir"
            )
            return Check(SOURCE, False, detail)
    return None


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


def check_compared(pairs: Pairs, differences: Iterable[str]) -> Check:
    """The check of every byte, from the differences of the shards in order."""
    total = sum(entry.nbytes for entry in pairs.entries.values())
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
    return check_that(TENSORS, list(filter(None, differences))[:1], fine)
