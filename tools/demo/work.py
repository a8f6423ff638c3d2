"""The work folder: a checkout of links without what ships, the records made in it, what is done."""

import json
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import platformdirs
from filelock import FileLock

from analysis.demo.held_out import held_out_numbers
from analysis.demo.listing import DEMO_CORPORA, TRAINING_DOCUMENTS
from analysis.demo.texts import demo_text
from analysis.files.durable import write_durably
from analysis.files.naming import digest_of
from analysis.files.shipped import DEMO_CHECKPOINT
from analysis.model.opening import load_model_index
from analysis.stats.manifest import MANIFEST
from analysis.stats.places import APP_NAME, record_folders
from pruning.measures.store import SEAL
from tools.demo.orders import RUNS, WEIGHTS, Key, Step
from tools.demo.record_keys import key_of
from tools.demo.rows import Whole, forget, whole_of

ROOT = Path(__file__).absolute().parents[2]  # links are not followed: it may be a work folder's
_PACKAGES = ("analysis", "app", "pruning", "tools")
# Variables that steps get; of the others some name statistics, and some change digits. LD_PRELOAD
# and NUMBA_CPU_NAME let one kind of processor round as another does.
_PASSED = frozenset(
    {
        "CUDA_VISIBLE_DEVICES",
        "HF_HUB_OFFLINE",
        "HOME",
        "LANG",
        "LC_ALL",
        "LD_LIBRARY_PATH",
        "LD_PRELOAD",
        "NUMBA_CPU_NAME",
        "PATH",
        "TMPDIR",
    }
)
_FOLDER_OF_RUN = {RUNS: "routed", WEIGHTS: "weights"}
# What may differ between two records of the same numbers: when and with what they were made, and
# the ids of calibrations, which are others if more statistics are asked for. Files are compared.
VARYING = frozenset({"made", SEAL, "seconds", "files", "runs"})


@dataclass(frozen=True)
class Stored:
    """A record on disk: its file, or its line in a file, and the files that belong to it."""

    key: Key
    name: str  # its id, or the name of its file
    path: Path  # of the file with its JSON
    raw: Mapping[str, Any]
    whole: Whole | None = None  # where its numbers are found, if they lie in the table

    @cached_property
    def facts(self) -> Mapping[str, Any]:
        """All that it says, with its numbers."""
        return self.whole.facts(self.name) if self.whole else self.raw

    @cached_property
    def files(self) -> tuple[Path, ...]:
        """Tables and tensors of its own."""
        if self.path.name == MANIFEST:
            return tuple(sorted(self.path.parent.glob("*.parquet")))
        own = self.path.with_suffix("")
        tensors = sorted(own.iterdir()) if own.is_dir() else []
        table = own.with_suffix(".parquet")
        return (*tensors, *([table] if table.is_file() else ()))


def texts_digest(numbers: Mapping[str, Iterable[int]]) -> str:
    """A digest of every text with these numbers, by corpus."""
    texts = {
        corpus: [
            [text.earlier, text.prompt, text.response, text.answer]
            for text in (demo_text(corpus, number) for number in indices)
        ]
        for corpus, indices in numbers.items()
    }
    return digest_of({"texts": texts})


def training_digest() -> str:
    """A digest of every text for training and calibration."""
    return texts_digest(dict.fromkeys(DEMO_CORPORA, range(TRAINING_DOCUMENTS)))


def inputs_digest(checkpoint: Path = DEMO_CHECKPOINT) -> str:
    """What all records are of: the model and the corpora."""
    inputs = {
        "model": load_model_index(str(checkpoint)).identity,
        "texts": training_digest(),
        "held_out": texts_digest(held_out_numbers(checkpoint)),
    }
    return digest_of(inputs)


@dataclass(frozen=True)
class Work:
    """A folder in which the steps of one model and its corpora are made."""

    folder: Path

    @property
    def tree(self) -> Path:
        """A checkout of links, from whose processes nothing that ships can be seen."""
        return self.folder / "tree"

    @property
    def stats(self) -> Path:
        """The statistics folder that steps read and write."""
        return self.folder / "stats"

    def mark(self, step: Step) -> Path:
        """The file that says that a step is done."""
        return self.folder / "steps" / f"{step.name}.json"

    def lock(self, step: Step) -> FileLock:
        """Held by the process that makes a step."""
        return FileLock(self.folder / f"{step.name}.lock")

    def searches(self, step: Step) -> Path:
        """The folder of the logs of a step's searches."""
        return self.folder / "searches" / step.name

    def search(self, criterion: str) -> Path:
        """The file of the search of a criterion, as it ships."""
        return self.stats / "searches" / f"demo-{criterion}.json"

    def prepare(self, checkpoint: Path = DEMO_CHECKPOINT) -> None:
        """Make the checkout, with this demo model."""
        for package in _PACKAGES:
            link_tree(ROOT / package, self.tree / package, {DEMO_CHECKPOINT: checkpoint.resolve()})
        self.stats.mkdir(parents=True, exist_ok=True)

    def is_done(self, step: Step, digest: str) -> bool:
        """Whether the step was made with the same settings and inputs."""
        facts = self._facts(step)
        return facts.get("digest") == digest and "seconds" in facts

    def seconds(self, step: Step) -> float:
        """How long the last sitting of a finished step took; 0 if it is not finished."""
        return float(self._facts(step).get("seconds", 0.0))

    def _facts(self, step: Step) -> dict[str, Any]:
        path = self.mark(step)
        facts: dict[str, Any] = json.loads(path.read_bytes()) if path.is_file() else {}
        return facts

    def is_other(self, step: Step, digest: str) -> bool:
        """Whether the step was made or begun with other settings or inputs."""
        return bool(self._facts(step).get("digest", digest) != digest)

    def begin(self, step: Step, digest: str) -> None:
        """Note what the step is made with; what was made otherwise is removed.

        Rows of the table too, unless other records read them; nobody may write there meanwhile.
        """
        if self.is_other(step, digest):
            keys = step.keys()
            others = [other for other in stored(self.stats, [step.kind]) if other.key in keys]
            forget(self.stats, [other.path for other in others])
            for record in others:
                _remove(record)
            shutil.rmtree(self.searches(step), ignore_errors=True)
        self._note(step, {"digest": digest})

    def finish(self, step: Step, digest: str, seconds: float) -> None:
        """Note that the step is done."""
        self._note(step, {"digest": digest, "seconds": round(seconds, 1)})

    def _note(self, step: Step, facts: Mapping[str, Any]) -> None:
        path = self.mark(step)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_durably(path, json.dumps(facts).encode())


def _remove(record: Stored) -> None:
    if record.path.name == MANIFEST:
        shutil.rmtree(record.path.parent)
        return
    for path in (record.path, *record.files):
        path.unlink()


def link_tree(source: Path, place: Path, instead: Mapping[Path, Path]) -> None:
    """Fill a folder with links to what another has; folders that lead to one replaced are real."""
    place.mkdir(parents=True, exist_ok=True)
    for gone in [path for path in place.iterdir() if not (source / path.name).exists()]:
        if gone.is_dir() and not gone.is_symlink():
            shutil.rmtree(gone)
        else:
            gone.unlink()
    for path in source.iterdir():
        link, target = place / path.name, instead.get(path, path)
        if any(path in original.parents for original in instead):
            link_tree(path, link, instead)
        elif path.name != "__pycache__" and (not link.is_symlink() or link.readlink() != target):
            link.unlink(missing_ok=True)
            link.symlink_to(target)


def step_digest(step: Step, inputs: str) -> str:
    """A digest of what a step asks for and of what it is made from."""
    orders = [
        [
            order.task,
            [plan.about for plan in order.plans],
            order.corpora,
            repr(sorted(order.options.items())),
            repr(order.ranking),
            [plan.repair_tokens for plan in order.plans],
        ]
        for order in step.orders
    ]
    return digest_of({"orders": orders, "inputs": inputs})


def stored(folder: Path, kinds: Iterable[str]) -> Iterator[Stored]:
    """The records of these kinds in a statistics folder."""
    for kind in kinds:
        if kind in _FOLDER_OF_RUN:
            yield from _runs(folder, kind)
            continue
        for place in record_folders([folder]):
            yield from _records(place / kind, kind)


def _runs(folder: Path, kind: str) -> Iterator[Stored]:
    for path in sorted(folder.glob(f"*/{MANIFEST}")):
        raw = json.loads(path.read_bytes())
        if raw["kind"] == _FOLDER_OF_RUN[kind]:
            yield Stored(key_of(kind, raw), path.parent.name, path, raw)


def _records(folder: Path, kind: str) -> Iterator[Stored]:
    whole = whole_of(folder, kind)
    for path in sorted(folder.glob("*.json")):
        raw = json.loads(path.read_bytes())
        yield Stored(key_of(kind, raw), path.stem, path, raw, whole)
    for path in sorted(folder.glob("*.jsonl")):
        yield from lines(path, kind)


def lines(path: Path, kind: str) -> Iterator[Stored]:
    """The records in a file of lines."""
    whole = whole_of(path.parent, kind)
    for line in path.read_text("utf-8").splitlines():
        raw = json.loads(line)
        yield Stored(key_of(kind, raw), id_of(raw), path, raw, whole)


def id_of(raw: Mapping[str, Any]) -> str:
    """The id of a record, whatever its kind calls it."""
    return str(next(value for name, value in raw.items() if name.endswith("_id")))


def lasting(value: Any) -> Any:
    """A JSON value without what may differ between two records of the same numbers."""
    if isinstance(value, dict):
        return {name: lasting(entry) for name, entry in value.items() if name not in VARYING}
    return [lasting(entry) for entry in value] if isinstance(value, list) else value


def default_folder() -> Path:
    """The default work folder, in the user's cache."""
    return platformdirs.user_cache_path(APP_NAME) / "demo"


def worker_environment(tree: Path) -> dict[str, str]:
    """The environment of a process that runs in a checkout of links, with a cache of its own.

    One thread: sums over several would give other digits on machines with more cores.
    """
    passed = {name: value for name, value in os.environ.items() if name in _PASSED}
    cache = str(tree.parent / "cache")
    return passed | {"XDG_CACHE_HOME": cache, "PYTHONPATH": str(tree), "OMP_NUM_THREADS": "1"}
