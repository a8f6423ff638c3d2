"""Puts the records of a work folder where they ship: all of them, or none."""

import json
import shutil
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

from analysis.errors import UserError
from analysis.files.durable import partial_of, write_durably
from analysis.files.shipped import DEMO_CHECKPOINT, DEMO_MODEL
from pruning.measurements.shards import FOLDER, SUFFIX
from tools.demo.building import Build
from tools.demo.comparing import CACHED, made
from tools.demo.orders import RUNS, WEIGHTS
from tools.demo.work import ROOT, Stored

# Tables of papers, which nothing here makes.
KEPT = "published"


def ship(build: Build, root: Path = ROOT, checkpoint: Path = DEMO_CHECKPOINT) -> list[Path]:
    """Replace what ships by the records of the build, and the model if it has another.

    Raises:
        UserError: a step of the table was not made, so nothing is shipped.
    """
    if missing := [step.name for step in build.steps if not build.is_done(step)]:
        raise UserError(f"Nothing is shipped: {', '.join(missing)} must be made first.")
    by_place = defaultdict[str, list[Stored]](list)
    for step in build.steps:
        if step.ships:
            by_place[step.ships] += made(step, build.work.stats)
    written = [_write_cached(by_place, root)]
    for place, records in by_place.items():
        if not place.startswith(CACHED):
            written += _write(root / place, records)
    model = build.work.tree / "analysis" / "demo" / "checkpoint"
    if model.resolve() != checkpoint.resolve():
        _replace(checkpoint, model.resolve())
        written.append(checkpoint)
    return written


def _write_cached(by_place: Mapping[str, Sequence[Stored]], root: Path) -> Path:
    """The folder of statistics: a new one beside it first, and then that in its place."""
    folder = root / CACHED
    draft = partial_of(folder)
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir()
    if (folder / KEPT).is_dir():
        shutil.copytree(folder / KEPT, draft / KEPT)
    for place, records in by_place.items():
        if place == CACHED or place.startswith(f"{CACHED}/"):
            _write(draft / Path(place).relative_to(CACHED), records)
    _swap(draft, folder)
    return folder


def _write(place: Path, records: Sequence[Stored]) -> list[Path]:
    """Write records as the lines of a file, or as files of a folder, and the rows that they read.

    The places that were written.
    """
    _write_records(place, records)
    whole = records[0].whole if records else None
    if whole is None:
        return [place]
    shard = shard_of(place, whole.kind)
    shard.parent.mkdir(parents=True, exist_ok=True)
    blocks = whole.blocks(record.name for record in records)
    write_durably(shard, b"".join(block.to_line() for block in blocks))
    return [place, shard]


def shard_of(place: Path, kind: str) -> Path:
    """The shard with the rows of the records that ship in a file, or in the folder of a kind."""
    folder, stem = (place.parent, place.stem) if place.suffix else (place, DEMO_MODEL)
    return folder.parent / FOLDER / f"{stem}-{kind}{SUFFIX}"


def _write_records(place: Path, records: Sequence[Stored]) -> None:
    if place.suffix == ".jsonl":
        place.parent.mkdir(parents=True, exist_ok=True)
        ordered = sorted(records, key=lambda record: record.name)
        text = "".join(json.dumps(record.raw, ensure_ascii=False) + "\n" for record in ordered)
        write_durably(place, text.encode())
        return
    place.mkdir(parents=True, exist_ok=True)
    for record in records:
        if record.key.kind in (RUNS, WEIGHTS):
            shutil.copytree(record.path.parent, place / record.name)
            continue
        shutil.copy(record.path, place)
        for file in record.files:
            target = place / file.relative_to(record.path.parent)
            target.parent.mkdir(exist_ok=True)
            shutil.copy(file, target)


def _replace(folder: Path, source: Path) -> None:
    draft = partial_of(folder)
    shutil.rmtree(draft, ignore_errors=True)
    shutil.copytree(source, draft)
    _swap(draft, folder)


def _swap(draft: Path, folder: Path) -> None:
    """Put a finished folder in the place of another."""
    old = folder.with_name(f".{folder.name}.old")
    shutil.rmtree(old, ignore_errors=True)
    if folder.exists():
        folder.replace(old)
    draft.replace(folder)
    shutil.rmtree(old, ignore_errors=True)
