"""Writes a run: everything next to its final path, the manifest last, then one rename."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path

from filelock import FileLock

from analysis.files.content import file_sha256
from analysis.files.durable import (
    PARTIAL,
    make_folder,
    named_errors,
    partial_of,
    sync_file,
    sync_folder,
    write_durably,
)
from analysis.lazy import pd
from analysis.numbers.arrays import FloatArray, IntArray
from analysis.stats import stored_tables
from analysis.stats.columns import EXPERT_COLUMNS, GROUP_COLUMNS
from analysis.stats.grid import Grid
from analysis.stats.manifest import EXPERTS, MANIFEST, VECTORS, WEIGHTS, Run, RunManifest
from analysis.stats.store import read_run
from analysis.stats.tables import ExpertStats, WeightStats


@contextmanager
def _writing(parent: Path, run_id: str) -> Iterator[None]:
    """Prevent other processes from writing the same run."""
    lock = FileLock(parent / f".{run_id}.write{PARTIAL}.lock")
    with lock:
        yield
    Path(lock.lock_file).unlink(missing_ok=True)


def _save(
    parent: Path,
    manifest: RunManifest,
    tables: Mapping[str, pd.DataFrame],
    vectors: FloatArray | None = None,
) -> Run:
    """Write everything next to its final path, the manifest last, then rename once."""
    make_folder(parent)
    target = parent / manifest.run_id
    partial = partial_of(target)
    with _writing(parent, manifest.run_id), named_errors(target):
        partial.mkdir(exist_ok=True)
        for name, table in tables.items():
            stored_tables.write_parquet(partial / name, table)
        if vectors is not None:
            stored_tables.write_vector_column(partial / VECTORS, tables[EXPERTS], vectors)
        names = [*tables, *([] if vectors is None else [VECTORS])]
        for name in names:
            sync_file(partial / name)
        finished = replace(manifest, files={name: file_sha256(partial / name) for name in names})
        raw = asdict(finished) | {"model": manifest.model.to_json()}
        write_durably(partial / MANIFEST, f"{json.dumps(raw, indent=2)}\n".encode())
        if target.exists():  # written by another process meanwhile, with the same digest
            shutil.rmtree(partial)
            return read_run(target)
        partial.replace(target)
        sync_folder(parent)
        # Saved state is deleted last: until the rename a resume needs it.
        for leftover in target.iterdir():
            if leftover.name not in (*names, MANIFEST):
                leftover.unlink()
    return Run(target, finished)


def save_expert_stats(
    parent: Path,
    manifest: RunManifest,
    table: pd.DataFrame,
    vectors: FloatArray,
    more: Mapping[str, pd.DataFrame] | None = None,
) -> Run:
    """Store a calibration run in the statistics directory `parent`, and fill in `files`.

    `table` has the sums of each expert, sorted by layer and expert; `vectors` is sum_t f in the
    same order; `more` holds further tables by file name.
    """
    frame = table.assign(vector_sum_sq=(vectors**2).sum(axis=1))
    groups = (name for names in GROUP_COLUMNS.values() for name in names)
    columns = [name for name in (*EXPERT_COLUMNS, *groups) if name in frame]
    frame = frame.astype({name: kind for name, kind in EXPERT_COLUMNS.items() if name in frame})
    stats = ExpertStats(manifest, frame[columns])
    return _save(parent, manifest, {EXPERTS: stats.table, **(more or {})}, vectors)


def save_counts(parent: Path, manifest: RunManifest, num_tokens: IntArray) -> Run:
    """Store a run of counts alone; `num_tokens` is in (layer, expert) order."""
    table = Grid(manifest.model.layers).index().assign(num_tokens=num_tokens)
    return _save(parent, manifest, {EXPERTS: ExpertStats(manifest, table).table})


def save_weight_stats(parent: Path, manifest: RunManifest, table: pd.DataFrame) -> Run:
    """Store weight statistics."""
    return _save(parent, manifest, {WEIGHTS: WeightStats(manifest, table).table})
