"""The cache of runs, directories of parquet and a manifest: list, load, save, verify, remove."""

from __future__ import annotations

import functools
import hashlib
import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from types import MappingProxyType
from typing import Any

from filelock import FileLock

from analysis.cache_keys import most_results
from analysis.errors import StatsError, did_you_mean
from analysis.families import MoELayer
from analysis.files.content import file_sha256, known_sha256, read_whole, settled_state
from analysis.files.durable import (
    PARTIAL,
    named_errors,
    partial_of,
    sync_file,
    sync_folder,
    unwritable,
    write_durably,
)
from analysis.files.home import from_home
from analysis.files.json_text import parse_json_once
from analysis.files.shipped import shipped_stats
from analysis.lazy import pd
from analysis.numbers.arrays import FloatArray
from analysis.stats import stored_tables
from analysis.stats.grid import Grid
from analysis.stats.groups import GROUP_COLUMNS
from analysis.stats.places import default_stats_dir
from analysis.stats.samples import (
    SAMPLE_COLUMNS,
    TRANSITION_COLUMNS,
    SamplePart,
    SampleStats,
    sample_stats,
    transitions_of,
)
from analysis.stats.tables import (
    EXPERT_COLUMNS,
    LARGEST,
    MOMENT_COLUMNS,
    OPTIONAL_COLUMNS,
    SCHEMA_VERSION,
    WEIGHT_COLUMNS,
    ExpertStats,
    MeasuredModel,
    RunManifest,
    WeightStats,
    corpus_from_json,
)

MANIFEST = "manifest.json"
EXPERTS, VECTORS, WEIGHTS = "experts.parquet", "vectors.parquet", "weights.parquet"
SHARDS, ROUTER, COACTIVATION = "shards.parquet", "router.parquet", "coactivation.parquet"
NEURONS, HEADS = "neurons.parquet", "heads.parquet"
SAMPLES, TRANSITIONS = "samples.parquet", "transitions.parquet"
# Tables that a calibration run may have beside that of experts.
GROUP_TABLES = (SHARDS, ROUTER, COACTIVATION, NEURONS, SAMPLES, TRANSITIONS, HEADS)


@dataclass(frozen=True, slots=True)
class Run:
    """A finished run in a statistics directory."""

    path: Path
    manifest: RunManifest
    is_shipped: bool = False  # whether it was read where the program's own records lie

    @property
    def cache_key(self) -> tuple[str, ...]:
        """Path, digest and groups; groups can be added later."""
        return (str(self.path), self.manifest.digest, *self.manifest.groups)


def digest_of(parts: Mapping[str, Any]) -> str:
    """SHA-256 of canonical JSON, as 64 hex digits."""
    text = json.dumps(parts, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def run_name(*words: str, digest: str) -> str:
    """Directory name: readable safe words and 8 hex digits of the digest."""
    text = "-".join(words).lower()
    safe = "".join(char if char.isalnum() or char in "-_+." else "-" for char in text)
    return f"{safe.strip('.-')[:80]}-{digest[:8]}"


def now() -> str:
    """The time in UTC, to the millisecond."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def read_run(path: Path) -> Run:
    """The finished run in a directory; a StatsError if there is none or it is unreadable."""
    file = path / MANIFEST
    if not file.is_file():
        raise StatsError(f"{path} has no {MANIFEST}; it is not a finished run.")
    try:
        # Cached, because pages list all runs at every click.
        state = settled_state(file)
        read = _read_manifest if state else _read_manifest.__wrapped__
        return Run(path, read(path, state))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise StatsError(
            f"The manifest of {path.name} cannot be read ({error!r}); delete {path} and make the "
            "run again."
        ) from error


@functools.lru_cache(maxsize=4096)
def _read_manifest(path: Path, state: tuple[int, ...] | None) -> RunManifest:
    """The manifest of a run; `state` is only part of the cache key."""
    raw = parse_json_once(read_whole(path / MANIFEST))
    version = raw["schema_version"]
    if version != SCHEMA_VERSION:
        raise StatsError(
            f"The run {path.name} has schema {version!r}, this program reads {SCHEMA_VERSION}; "
            "remake it with `moeprune calibrate` (or `moeprune weights`)."
        )
    if raw["kind"] not in ("routed", "weights"):
        raise ValueError(f"{raw['kind']!r} is not a kind of run")
    model = MeasuredModel.from_json(raw["model"])
    settings, files = raw["settings"], raw["files"]
    texts = {"run_id": raw["run_id"], "digest": raw["digest"], "dtype": settings["dtype"]}
    texts |= {"name": model.name, "identity": model.identity, "model_type": model.model_type}
    texts |= {f"digest of {name}": digest for name, digest in files.items()}
    texts |= {f"group {each!r}": each for each in raw["groups"]}
    numbers = {key: settings[key] for key in ("seq_len", "seed") if key in settings}
    for kind, values in ((str, texts), (int, numbers)):
        for name, value in values.items():
            if type(value) is not kind:
                raise ValueError(f"{value!r} is not a {name}")
    return RunManifest(
        kind=raw["kind"],
        run_id=raw["run_id"],
        digest=raw["digest"],
        model=model,
        corpora=tuple(map(corpus_from_json, raw["corpora"])),
        settings=dict(settings.items()),
        made=dict(raw["made"].items()),
        files=files,
        groups=tuple(raw["groups"]),
    )


def read_vectors(run: Run) -> FloatArray:
    """(experts of all layers, hidden size) float64: sum_t f, in (layer, expert) order."""
    rows = sum(layer.num_experts for layer in run.manifest.model.layers)
    with _reading(run, VECTORS) as path:
        return stored_tables.read_vector_column(path, rows)


def _damaged(run: Run, name: str, reason: object) -> StatsError:
    run_id = run.manifest.run_id
    return StatsError(
        f"{name} of the run {run_id} is damaged or missing ({' '.join(str(reason).split())}); "
        f"remove the run with `moeprune runs remove {run_id}` and make it again."
    )


@contextmanager
def _reading(run: Run, name: str) -> Iterator[Path]:
    """The path of a data file as the run wrote it; what is wrong with it names the run."""
    path = run.path / name
    try:
        if known_sha256(path) != run.manifest.files.get(name):
            raise ValueError("it has changed since it was written")  # noqa: TRY301
        yield path
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise _damaged(run, name, reason) from error


def read_table(
    run: Run,
    name: str,
    needed: Mapping[str, str] = MappingProxyType({}),
    optional: Mapping[str, str] = MappingProxyType({}),
) -> pd.DataFrame:
    """One of a run's tables, such as SHARDS; `manifest.files` lists them.

    `needed` and `optional` give columns with their dtype; "number" is any numeric one.
    """
    with _reading(run, name) as path:
        table: pd.DataFrame = stored_tables.read_parquet(path, needed, optional).to_pandas()
    return table


def _check_possible(run: Run, name: str, table: pd.DataFrame) -> None:
    """Refuse sums that no calibration gives: negative ones, or more tokens than were counted."""
    for column in (*MOMENT_COLUMNS, "vector_sum_sq", LARGEST):
        if column in table and (table[column] < 0).any():
            raise _damaged(run, name, f"{column} holds a negative number")
    counted = sum(corpus.num_counted for corpus in run.manifest.corpora)
    if len(most := table["num_tokens"][table["num_tokens"] > counted]):
        most_said = f"num_tokens says {most.max():,} for an expert"
        raise _damaged(run, name, f"{most_said}, but {counted:,} tokens were counted")
    # By Cauchy and Schwarz: (sum of n norms)^2 <= n * (sum of their squares).
    most_sums = table["num_tokens"] * table["g0_f2"] * (1 + 1e-6)
    if (table["g0_f1"] ** 2 > most_sums).any():
        raise _damaged(run, name, "g0_f1 holds a sum that its squares in g0_f2 rule out")
    # No value of a vector is larger than its norm, which was rounded to float32.
    if LARGEST in table and (table[LARGEST] ** 2 > table["g0_f2"] * (1 + 1e-4)).any():
        raise _damaged(run, name, f"{LARGEST} holds a value that the squares in g0_f2 rule out")


@most_results(32)
def load_expert_stats(run: Run) -> ExpertStats:
    """Routed statistics of a run."""
    needed = {name: kind for name, kind in EXPERT_COLUMNS.items() if name not in OPTIONAL_COLUMNS}
    of_groups = (name for columns in GROUP_COLUMNS.values() for name in columns)
    optional = dict.fromkeys((*OPTIONAL_COLUMNS, *of_groups), "number")
    table = read_table(run, EXPERTS, needed, optional)
    _check_possible(run, EXPERTS, table)
    has_samples = SAMPLES in run.manifest.files
    samples = (SamplePart(lambda: load_sample_stats(run)),) if has_samples else ()
    return ExpertStats(run.manifest, table, samples)


def load_head_stats(run: Run, layers: tuple[MoELayer, ...]) -> ExpertStats:
    """Statistics of the experts of prediction heads; `layers` are theirs in the model."""
    if HEADS not in run.manifest.files:
        raise StatsError(
            f"The run {run.manifest.run_id} has no statistics of prediction heads; calibrate with "
            "--group heads."
        )
    needed = {name: kind for name, kind in EXPERT_COLUMNS.items() if name not in OPTIONAL_COLUMNS}
    table = read_table(run, HEADS, needed, dict.fromkeys(OPTIONAL_COLUMNS, "number"))
    _check_possible(run, HEADS, table)
    model = replace(run.manifest.model, layers=layers)
    return ExpertStats(replace(run.manifest, model=model), table)


def load_sample_stats(run: Run) -> SampleStats:
    """The dense statistics of a run."""
    if SAMPLES not in run.manifest.files:
        raise StatsError(
            f"The run {run.manifest.run_id} has no statistics of samples; calibrate with --group "
            "dense."
        )
    grid = Grid(run.manifest.model.layers)
    sums = {name: "float64" if name.endswith("_sum") else "int64" for name in SAMPLE_COLUMNS}
    stats = sample_stats(read_table(run, SAMPLES, sums), grid)
    counts = read_table(run, TRANSITIONS, dict.fromkeys(TRANSITION_COLUMNS, "int64"))
    return replace(stats, transitions=transitions_of(counts, grid))


@most_results(16)
def load_weight_stats(run: Run) -> WeightStats:
    """Weight statistics of a run."""
    table = read_table(run, WEIGHTS, WEIGHT_COLUMNS)
    for column in ("l1", "l2_squared", "numel"):
        if (table[column] < 0).any():
            raise _damaged(run, WEIGHTS, f"{column} holds a negative number")
    return WeightStats(run.manifest, table)


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
    parent.mkdir(parents=True, exist_ok=True)
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


def save_weight_stats(parent: Path, manifest: RunManifest, table: pd.DataFrame) -> Run:
    """Store weight statistics."""
    return _save(parent, manifest, {WEIGHTS: WeightStats(manifest, table).table})


def _runs_in(folder: Path, on_problem: Callable[[StatsError], None] | None) -> Iterator[Run]:
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        if path.name.endswith(PARTIAL) or not (path / MANIFEST).is_file():
            continue
        try:
            run = read_run(path)
        except StatsError as error:
            if on_problem:
                on_problem(error)
            continue
        yield run


class StatsStore:
    """Runs of the user's own folder, which takes new ones, and of the shipped one, if any."""

    def __init__(self, own: Path, shipped: Path | None = None) -> None:
        self.target: Path = from_home(own)  # where new runs are written
        self.shipped: Path | None = shipped
        self._runs: tuple[Run, ...] | None = None
        self._key: list[tuple[str, ...]] | None = None

    def snapshot(self) -> StatsStore:
        """The same with the runs of this moment, which are not read again."""
        taken = StatsStore(self.target, self.shipped)
        taken._runs = tuple(self.runs())
        taken._key = taken.cache_key
        return taken

    @property
    def directories(self) -> tuple[Path, ...]:
        """Where records are read: own ones, which may add to those that ship, come first."""
        return (self.target, self.shipped) if self.shipped else (self.target,)

    @property
    def cache_key(self) -> list[tuple[str, ...]]:
        """All of its runs, on any of which a function of a store may depend."""
        return self._key or [run.cache_key for run in self.runs()]

    def check_target(self) -> None:
        """Refuse a folder that new runs cannot be written to, before any work."""
        if reason := unwritable(self.target):
            raise StatsError(
                f"Nothing can be written to the statistics folder {self.target} ({reason}); name "
                "another with --stats-dir."
            )

    def runs(self, on_problem: Callable[[StatsError], None] | None = None) -> list[Run]:
        """Finished runs by name; unreadable ones are reported and skipped."""
        if self._runs is not None:
            return list(self._runs)
        runs: dict[str, Run] = {}
        for folder in filter(None, (self.shipped, self.target)):
            for run in _runs_in(folder, on_problem):
                known = replace(run, is_shipped=folder is self.shipped)
                runs.setdefault(run.manifest.run_id, known)
        return [runs[name] for name in sorted(runs)]

    def get(self, run_id: str) -> Run:
        """The run with this id, or the only one whose id or digest starts with it."""
        runs = self.runs()
        matches = [run for run in runs if run.manifest.run_id == run_id] or [
            run
            for run in runs
            if run.manifest.run_id.startswith(run_id)
            or run.manifest.run_id.rpartition("-")[2].startswith(run_id)
        ]
        if len(matches) == 1:
            return matches[0]
        names = [run.manifest.run_id for run in (matches or runs)]
        problem = "is not unique." if matches else f"is unknown.{did_you_mean(run_id, names)}"
        raise StatsError(f"The run {run_id!r} {problem} Runs: {', '.join(names) or 'none'}.")

    def of_model(self, identity: str, kind: str) -> list[Run]:
        """Runs of one kind whose model identity matches."""
        return [
            run
            for run in self.runs()
            if run.manifest.model.identity == identity and run.manifest.kind == kind
        ]

    def verify(self, run: Run) -> None:
        """Check every data file against the manifest."""
        for name, expected in run.manifest.files.items():
            path = run.path / name
            if not path.is_file():
                raise StatsError(f"{run.manifest.run_id}: {name} is missing.")
            if file_sha256(path) != expected:
                raise StatsError(f"{run.manifest.run_id}: {name} has changed since it was written.")
        (load_expert_stats if run.manifest.kind == "routed" else load_weight_stats)(run)

    def remove(self, run: Run) -> None:
        """Delete a run for good; refuses one that ships."""
        if run.is_shipped:
            raise StatsError(f"{run.manifest.run_id} ships with the program and is not removed.")
        # Renamed first, so that an interrupted removal leaves no seemingly finished run.
        doomed = partial_of(run.path)
        if doomed.exists():
            shutil.rmtree(doomed)
        run.path.replace(doomed)
        shutil.rmtree(doomed)


def stats_store(stats_dir: Path | None = None) -> StatsStore:
    """A store that writes to `stats_dir`, by default in the user's cache, and reads what ships.

    Raises:
        StatsError: `stats_dir` is in the folder that ships.
    """
    shipped = shipped_stats()
    own = from_home(stats_dir or default_stats_dir())
    if own.resolve().is_relative_to(shipped.resolve()):
        raise StatsError(
            f"{own} ships with the program: it is read alongside every statistics folder, and "
            "never written. Leave --stats-dir out, or name another folder."
        )
    return StatsStore(own, shipped)
