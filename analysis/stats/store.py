"""The cache of runs, directories of parquet and a manifest: list, find and remove them."""

from __future__ import annotations

import functools
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import get_args

from analysis.errors import StatsError, did_you_mean
from analysis.files.content import read_whole, settled_state
from analysis.files.durable import PARTIAL, partial_of, unwritable
from analysis.files.home import from_home
from analysis.files.json_text import parse_json_once
from analysis.files.shipped import shipped_stats
from analysis.stats.manifest import (
    MANIFEST,
    SCHEMA_VERSION,
    MeasuredModel,
    Run,
    RunKind,
    RunManifest,
    corpus_from_json,
)
from analysis.stats.places import own_stats_dir


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
    if raw["kind"] not in get_args(RunKind):
        raise ValueError(f"{raw['kind']!r} is not a kind of run")
    model = MeasuredModel.from_json(raw["model"])
    settings, files = raw["settings"], raw["files"]
    texts = {"run_id": raw["run_id"], "digest": raw["digest"], "dtype": settings["dtype"]}
    texts |= {"name": model.name, "identity": model.identity, "model_type": model.model_type}
    texts |= {f"digest of {name}": digest for name, digest in files.items()}
    texts |= {f"group {group!r}": group for group in raw["groups"]}
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

    def of_model(self, identity: str, *kinds: RunKind) -> list[Run]:
        """Runs of these kinds whose model identity matches."""
        return [
            run
            for run in self.runs()
            if run.manifest.model.identity == identity and run.manifest.kind in kinds
        ]

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
    return StatsStore(own_stats_dir(stats_dir), shipped_stats())
