"""Check an export's bytes: its hashes, and its tensors against the source, from the same reads."""

from collections.abc import Generator, Iterable, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from analysis.model.moe_model import MoEModel
from pruning.surgery.checks import Check, check_bytes
from pruning.surgery.comparison import Pairs, check_compared, check_repair, compared_tensors
from pruning.surgery.manifest import Manifest
from pruning.surgery.reading import Files, HashedFile, Reader, ask_shards


@dataclass(frozen=True, slots=True)
class ContentChecks:
    """The checks of an export that load no model."""

    own: Sequence[Check]  # of its own bytes
    source: Sequence[Check]  # against the source; empty without one

    @property
    def all(self) -> tuple[Check, ...]:
        """In order."""
        return (*self.own, *self.source)


def check_contents(
    path: Path, manifest: Manifest, source: MoEModel | None = None
) -> Generator[int, None, ContentChecks]:
    """Check an export's own bytes, and with the source every tensor, even if one check fails.

    Each byte of the export, and of what it holds of the source or of a repair, is read once.
    Yields how many bytes of the export are read.
    """
    accounted, pairs = compared_tensors(path, manifest, source) if source else (None, None)
    names = {shard.name for shard in manifest.shards if (path / shard.name).is_file()}
    names |= {entry.shard for entry in pairs.entries.values()} if pairs else set()
    with ExitStack() as opened:
        repairs = {
            file: opened.enter_context(closing(HashedFile(file)))
            for file in _repair_files(manifest if pairs else None)
        }

        def ask(name: str, reader: Reader) -> tuple[str, str]:
            with closing(HashedFile(path / name)) as export, closing(Files(repairs)) as files:
                difference = _first_difference(pairs, export, files, reader) if pairs else ""
                return export.sha256(reader.count), difference

        answers = yield from ask_shards(sorted(names), ask)
        changed = check_repair(manifest, {file: at.sha256() for file, at in repairs.items()})
    own = check_bytes(path, manifest, {name: sha256 for name, (sha256, _) in answers.items()})
    if accounted is None:
        return ContentChecks(own, ())
    if changed or pairs is None:
        return ContentChecks(own, (changed or accounted,))
    compared = check_compared(pairs, (difference for _, difference in answers.values()))
    return ContentChecks(own, (accounted, compared))


def _repair_files(manifest: Manifest | None) -> Iterable[Path]:
    """The files of an export's repair, if they are here."""
    repair = manifest.plan.repair if manifest else None
    return repair.files.values() if repair and repair.folder else ()


def _first_difference(pairs: Pairs, export: HashedFile, files: Files, reader: Reader) -> str:
    """A sentence on the first tensor of a shard that is wrong; empty if none is."""
    for entry in pairs.by_shard.get(export.path.name, ()):
        tensor, place = pairs.expected[entry.name], 0
        if not tensor.is_known:
            continue
        export.skip(entry.start, reader.count)
        source = tensor.file or pairs.source / tensor.source.shard
        # About a MiB at a time, flat.
        for block in (block for part in tensor.parts for block in part.blocks(source, files)):
            expected = block.reshape(-1)
            actual = export.read(entry.start + place, expected.size)
            if not _are_equal(expected, actual):
                byte = place + int(np.argmax(expected != actual))
                return pairs.sentence(entry.name, byte)
            place += expected.size
            reader.count(expected.size)
    return ""


def _are_equal(first: NDArray[np.uint8], second: NDArray[np.uint8]) -> bool:
    # Eight bytes at a time, where there are so many.
    whole = first.size // 8 * 8 if first.flags.c_contiguous else 0
    return np.array_equal(first[:whole].view("u8"), second[:whole].view("u8")) and np.array_equal(
        first[whole:], second[whole:]
    )
