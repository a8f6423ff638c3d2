"""Checks of an export against its source: every tensor accounted for, and every byte compared."""

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from analysis.checkpoint import TensorEntry, open_checkpoint
from analysis.errors import CheckpointError, ExportError, PlanError
from analysis.model import MoEModel
from analysis.progress import Progress
from pruning.atoms.widths import plan_widths
from pruning.plan import fit_plan
from pruning.surgery.checks import Check, Reader, ask_shards, check_that
from pruning.surgery.expected import ExpectedTensor, expected_tensors, mapped
from pruning.surgery.manifest import Manifest
from pruning.surgery.shards import check_located

SOURCE, TENSORS = "source", "tensors"  # names of the two checks


@dataclass(frozen=True)
class Pairs:
    """The tensors of an export and what each must be."""

    export: Path  # its directory
    source: Path  # the directory of the source
    expected: Mapping[str, ExpectedTensor]  # name -> what the tensor must be
    found: Mapping[str, TensorEntry]  # name -> where it lies in the export


def check_against_source(
    path: Path, manifest: Manifest, source: MoEModel
) -> Generator[Progress, None, tuple[Check, ...]]:
    """Two checks: names, types and shapes of all tensors; then, if those hold, every byte."""
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
        expected = expected_tensors(source, plan, manifest.heads, widths)
        pairs = Pairs(path, source.checkpoint.path, expected, open_checkpoint(path).tensors)
    except (PlanError, ExportError, CheckpointError) as error:
        return (Check(SOURCE, False, str(error)),)
    accounted = _check_accounts(pairs, manifest, source)
    if not accounted.ok:
        return (accounted,)
    return accounted, (yield from _check_bytes(pairs))


def _check_accounts(pairs: Pairs, manifest: Manifest, source: MoEModel) -> Check:
    wanted = {name: (each.source.dtype, each.shape) for name, each in pairs.expected.items()}
    found = {name: (entry.dtype, entry.shape) for name, entry in pairs.found.items()}
    problems = [
        f"{name} should be {wanted.get(name, 'absent')}, but is {found.get(name, 'absent')}"
        for name in sorted(wanted.keys() | found.keys())
        if wanted.get(name) != found.get(name)
    ]
    total = len(source.checkpoint.tensors)
    cut = sum(each.is_cut for each in pairs.expected.values())
    stay = {each.source.name for each in pairs.expected.values()}
    fine = (
        f"each of the source's {total} tensors is accounted for: {len(wanted) - cut} copied, "
        f"{cut} cut, {total - len(stay)} dropped"
    )
    # Only where the tensors are right can their numbers be.
    problems = problems or _number_problems(pairs, manifest, source)
    return check_that(SOURCE, problems, fine)


def _number_problems(pairs: Pairs, manifest: Manifest, source: MoEModel) -> list[str]:
    """What the manifest counts otherwise than it is: tensors of shards, and shards gone."""
    problems = []
    for shard in manifest.shards:
        held = [name for name, entry in pairs.found.items() if entry.shard == shard.name]
        cut = sum(pairs.expected[name].is_cut for name in held)
        if (cut, len(held) - cut) != (shard.cut, shard.copied):
            problems.append(
                f"{shard.name} holds {len(held) - cut} copied and {cut} cut tensors, but the "
                f"manifest counts {shard.copied} and {shard.cut}"
            )
    stay = {each.source.name for each in pairs.expected.values()}
    shards = {shard.name: shard.tensors for shard in source.checkpoint.shards if shard.tensors}
    lost = {name: sum(each.name not in stay for each in held) for name, held in shards.items()}
    # Shards that were made anew say 0: what is gone was in others.
    if any(shard.dropped for shard in manifest.shards):
        problems += [
            f"{shard.name} lost {lost.get(shard.name, 0)} tensors, but the manifest counts "
            f"{shard.dropped} as dropped"
            for shard in manifest.shards
            if lost.get(shard.name, 0) != shard.dropped
        ]
    gone = [name for name, held in shards.items() if lost[name] == len(held)]
    if sorted(gone) != sorted(manifest.dropped_shards):
        said = ", ".join(manifest.dropped_shards) or "none"
        problems.append(
            f"the source's shards of which nothing is left are {', '.join(gone) or 'none'}, but "
            f"the manifest names {said}"
        )
    return problems


def _check_bytes(pairs: Pairs) -> Generator[Progress, None, Check]:
    """Compare shard by shard; of tensors that differ, the first in their order is named."""
    total = sum(entry.nbytes for entry in pairs.found.values())
    shards: dict[str, list[str]] = {}
    for name, entry in pairs.found.items():
        shards.setdefault(entry.shard, []).append(name)
    found = yield from ask_shards(
        shards, lambda shard, reader: _differs(pairs, shards[shard], reader), "comparing", total
    )
    problems = filter(None, found.values())
    fine = f"all {total} bytes of {len(pairs.found)} tensors are the source's, or the plan's cut"
    return check_that(TENSORS, list(problems)[:1], fine)


def _differs(pairs: Pairs, names: Sequence[str], reader: Reader) -> str:
    """The first of some tensors that is not what it must be, in a sentence; empty for none."""
    for name in names:
        made, entry, place = pairs.expected[name], pairs.found[name], 0
        source, export = pairs.source / made.source.shard, pairs.export / entry.shard
        # A few MiB at a time, flat.
        for block in (block for part in made.parts for block in part.blocks(source)):
            wanted = block.reshape(-1)
            found = mapped(export, entry.start + place, (wanted.size,))
            if not np.array_equal(wanted, found):
                byte = place + int(np.argmax(wanted != found))
                whose = "the plan's cut" if made.is_cut else "a copy"
                return (
                    f"{name} is not {whose} of the source's {made.source.name}: byte {byte} of the "
                    "tensor is the first that differs"
                )
            place += wanted.size
            if not reader.goes_on(wanted.size):
                return ""
    return ""
