"""kill -9 at random moments of real commands: nothing is lost, nothing passes for complete.

`python -m tools.reliability.kills --kills 100 --seed 1` prints a table. Each attempt begins in an
empty folder. A command is killed once, twice or three times at moments drawn uniformly from the
time that it takes; after each kill whatever looks complete must equal what an uninterrupted run
made. Then the command runs to its end, and all must equal it. So must the table of measurements, to
the bit: no whole line of it is ever lost, and no row is there twice.

100 kills of what writes the table: `--kills 34 --command evaluate --command sensitivity
--command search`.

Commands run in children forked from a process that has imported the libraries: the moments fall
into the work. A command of two processes gets them as from torchrun, and one of them is killed.
"""

import argparse
import contextlib
import json
import os
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import pandas as pd
import torch
from servers import an_unused_port
from tqdm import tqdm

from analysis.calibration import partial
from analysis.files.content import file_sha256
from analysis.files.durable import PARTIAL
from analysis.stats.manifest import MANIFEST
from app.cli import main as moeprune
from builders import tiny_checkpoint
from builders.tokens import random_ids
from pruning.records.sensitivity import SensitivityRecord, SensitivityStore
from pruning.search.store import UNFINISHED_PLAN_NAME
from pruning.surgery.manifest import MANIFEST_NAME
from tools.reliability.table_rows import Row, faults, rows, whole_lines

_MOST_KILLS = 3  # in a row, before a command may finish
_GRACE = 3.0  # seconds that a process has to end, once another one is gone


@dataclass(frozen=True)
class Command:
    """A command to be killed.

    Args:
        name: of it.
        words: its command line; MODEL and TEXT stand for those files.
        before: command lines that run undisturbed first.
        processes: how many run it, as ranks of one launcher.
    """

    name: str
    words: str
    before: tuple[str, ...] = ()
    processes: int = 1


_MADE = ("made", "sha256")  # how a record was made, and its seal, which covers that
_CALIBRATE = "calibrate MODEL --corpus TEXT --tokens 600 --seq-len 16 --batch-size 1 --stats-dir s"
_PLAN = "plan MODEL --criterion reap --calibrated-on TEXT --sparsity 40% --stats-dir s -o plan.json"
_DENSE = f"{_CALIBRATE} --group dense"
_MEASURE = "--corpus TEXT --samples 12 --seq-len 9 --stats-dir s"
_OTHER_PLAN = "plan MODEL --criterion aimer --sparsity 40% --stats-dir s -o other.json"
_EVALUATE = f"evaluate MODEL --force --plan plan.json --plan other.json {_MEASURE} --batch-size 2"
_SEARCH = "search recipe.yaml --stats-dir s --batch-size 2"
_SENSITIVITY = (
    "sensitivity MODEL --criterion reap --calibrated-on TEXT --corpus TEXT --samples 12 "
    "--seq-len 9 --batch-size 2 --levels 4 --sparsity 40% --refine 1 --stats-dir s"
)
_DEMO_PLAN = "plan demo --criterion aimer --sparsity 50% --stats-dir s -o plan.json"
_RECIPE = {
    "tokens": 600,
    "seq_len": 16,
    "criterion": "frequency",
    "budget": {"sparsity": "40%"},
    "search": {"samples": 6, "population": 8, "elites": 3, "generations": 4},
    "evaluate": {"fitness": ["esap", "kl"], "samples": 6},
    "export": {"out": "out", "verify": False},
}
COMMANDS = (
    Command("calibrate", _CALIBRATE),
    Command(
        "calibrate, all groups", f"{_CALIBRATE} --group router --group damage --group gradient"
    ),
    Command("calibrate, streamed", f"{_CALIBRATE} --stream-layers"),
    Command("weights", "weights MODEL --stats-dir s"),
    Command("evaluate", _EVALUATE, (_CALIBRATE, _PLAN, _OTHER_PLAN)),
    Command("evaluate, streamed", f"{_EVALUATE} --stream-layers", (_CALIBRATE, _PLAN, _OTHER_PLAN)),
    Command("search", _SEARCH, (_CALIBRATE,)),
    Command("export", "export MODEL --plan plan.json out", (_CALIBRATE, _PLAN)),
    Command("prune", "prune recipe.yaml --stats-dir s --batch-size 2"),
    Command("sensitivity", _SENSITIVITY, (_CALIBRATE,)),
    Command("sensitivity, streamed", f"{_SENSITIVITY} --stream-layers", (_CALIBRATE,)),
    Command("calibrate, 2 processes", _CALIBRATE, processes=2),
    Command("evaluate, 2 processes", _EVALUATE, (_CALIBRATE, _PLAN, _OTHER_PLAN), processes=2),
    Command(
        "evaluate, streamed, 2 processes",
        f"{_EVALUATE} --stream-layers",
        (_CALIBRATE, _PLAN, _OTHER_PLAN),
        processes=2,
    ),
    Command("search, 2 processes", _SEARCH, (_CALIBRATE,), processes=2),
    Command(
        "search, streamed, 2 processes", f"{_SEARCH} --stream-layers", (_CALIBRATE,), processes=2
    ),
    Command("sensitivity, 2 processes", _SENSITIVITY, (_CALIBRATE,), processes=2),
    Command("paths", "paths MODEL --force --sparsity 40% --table t.csv --stats-dir s", (_DENSE,)),
    Command(
        "variance",
        f"variance MODEL --force --plan plan.json {_MEASURE} -o v.csv",
        (_CALIBRATE, _PLAN),
    ),
    Command(
        "bins",
        f"bins MODEL --force --criterion frequency --bins 3 {_MEASURE} -o bins.parquet",
        (_CALIBRATE,),
    ),
    Command(
        "sweep",
        f"sweep MODEL --criterion reap --sparsity 20% --sparsity 40% {_MEASURE} --force "
        "-o sweep.csv",
        (_CALIBRATE,),
    ),
    Command(
        "benchmark",
        "benchmark demo --force --plan plan.json --task demo-code-mc --task demo-stories-exact "
        "--limit 4 --stats-dir s -o result.json",
        (_DEMO_PLAN,),
    ),
)


@dataclass
class Tally:
    """What came of one command; `found` and `rows` are complete right after kills."""

    kills: int = 0
    too_late: int = 0
    nothing: int = 0
    found: int = 0
    rows: int = 0  # of the table of measurements
    reruns: int = 0
    problems: list[str] = field(default_factory=list)


def make_world(root: Path) -> None:
    """The model and the text that all attempts share."""
    tiny_checkpoint(root / "model", "olmoe")
    random_ids(root / "text.jsonl", (50, 16))


def _words(line: str, root: Path) -> list[str]:
    places = {"MODEL": str(root / "model"), "TEXT": str(root / "text.jsonl")}
    return [places.get(word, word) for word in line.split()]


def _begin_all(words: list[str], folder: Path, processes: int) -> list[int]:
    """Begin a command in so many processes, with the variables that torchrun gives them."""
    if processes == 1:
        return [_begin(words, folder, {})]
    shared = {"WORLD_SIZE": processes, "LOCAL_WORLD_SIZE": processes, "MASTER_ADDR": "localhost"}
    shared["MASTER_PORT"] = an_unused_port()
    ranks = ({"RANK": rank, "LOCAL_RANK": rank, **shared} for rank in range(processes))
    return [_begin(words, folder, {k: str(v) for k, v in rank.items()}) for rank in ranks]


def _begin(words: list[str], folder: Path, variables: Mapping[str, str]) -> int:
    """Fork a child that runs a command in a folder; its process id."""
    sys.stdout.flush()
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        os.setsid()
        os.chdir(folder)
        os.environ.update(variables)
        output = os.open(folder / "log.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(output, 1)
        os.dup2(output, 2)
        # Saved after every batch, so that many kills find something to resume from.
        partial._SAVE_EVERY_SECONDS = partial._TIMES_THE_SAVE = 0.0
        # All forks share tqdm's lock, which stays locked behind one that is killed with it.
        tqdm.set_lock(threading.RLock())
        sys.argv = ["moeprune", *words]
        moeprune()
    except SystemExit as ended:
        code = int(ended.code or 0)
    except BaseException:  # noqa: BLE001
        traceback.print_exc()
    finally:
        os._exit(code)


def run(words: list[str], folder: Path, processes: int = 1) -> float:
    """Run a command to its end; how long that took."""
    began = time.monotonic()
    children = _begin_all(words, folder, processes)
    ends = [os.waitpid(child, 0)[1] for child in children]
    if any(ends):
        log = (folder / "log.txt").read_text()[-2000:]
        raise AssertionError(f"{' '.join(words)} did not come to its end: {log}")
    return time.monotonic() - began


def kill(words: list[str], folder: Path, after: float, processes: int, victim: int) -> bool:
    """Run a command and kill one of its processes after so many seconds; whether that came in time.

    And whatever it has started.
    The others are told to end, as torchrun does, unless they do by themselves.
    """
    children = _begin_all(words, folder, processes)
    time.sleep(after)
    try:
        os.killpg(children[victim], signal.SIGKILL)
    except ProcessLookupError:  # it has no group of its own yet, or is over
        os.kill(children[victim], signal.SIGKILL)
    _, status = os.waitpid(children[victim], 0)
    for child in children:
        if child != children[victim]:
            _end(child)
    return os.WIFSIGNALED(status)


def _end(child: int) -> None:
    """Wait for a process that has lost another one: its own end, or as torchrun ends it.

    One that still waits for the other to come up is in a library's code, where no handler runs.
    """
    for number in (0, signal.SIGTERM, signal.SIGKILL):
        deadline = time.monotonic() + _GRACE
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, number)
        while time.monotonic() < deadline:
            if os.waitpid(child, os.WNOHANG) != (0, 0):
                return
            time.sleep(0.01)
    raise AssertionError(f"the process {child} outlives SIGKILL")


def artifacts(folder: Path) -> dict[str, Any]:
    """Everything below that looks complete: its place -> what must not depend on interruptions."""
    found: dict[str, Any] = {}
    for path in sorted(folder.rglob("*")):
        place = str(path.relative_to(folder))
        # The program's own words for unfinished: names with .partial, and the plan of an unfinished
        # search. Shards of measurements are of processes, and grow.
        # What the library of data sets keeps of local tasks is its own.
        if not path.is_file() or PARTIAL in place or path.suffix in (".jsonl", ".txt"):
            continue
        if path.name in ("lock", UNFINISHED_PLAN_NAME) or "arrow" in path.parts:
            continue
        value = _READERS.get(path.name, _READERS.get(path.parent.name, _essence))(path)
        if value is not None:
            found[place] = value
    return found


def _essence(path: Path) -> Any:
    if path.suffix == ".csv":
        return pd.read_csv(path).drop(columns="created_at", errors="ignore").to_csv()
    if path.suffix != ".json":
        return file_sha256(path)
    return _without_made(json.loads(path.read_bytes()))


def _without_made(raw: Any) -> Any:
    """A record without how it was made; a file of several evaluations has it in each."""
    if isinstance(raw, list):
        return [_without_made(record) for record in raw]
    if isinstance(raw, dict):
        return {key: _without_made(value) for key, value in raw.items() if key not in _MADE}
    return raw


def _run_manifest(path: Path) -> Any:
    raw = _essence(path)
    for name, digest in raw["files"].items():
        assert file_sha256(path.with_name(name)) == digest, f"{path}: {name} is not what it says"
    return raw


def _export_manifest(path: Path) -> Any:
    raw = json.loads(path.read_bytes())
    for record in raw["shards"]:
        assert file_sha256(path.with_name(record["name"])) == record["sha256"], record["name"]
    return raw


def _search(path: Path) -> Any:
    raw = json.loads(path.read_bytes())
    # One that says of itself that it is not finished is no complete artifact.
    return (
        {k: v for k, v in raw.items() if k not in ("cost", "sha256")} if raw["finished"] else None
    )


def _plan(path: Path) -> Any:
    """A plan; that of a search only once its search is finished."""
    search = path.with_name("search.json")
    if path.parent.name.endswith(".search") and (not search.exists() or _search(search) is None):
        return None
    return json.loads(path.read_bytes())


def _curves(path: Path) -> Any:
    """A record of curves with its numbers, which are in the table, each of them once."""
    store, record = SensitivityStore([path.parents[1]]), SensitivityRecord.read(path)
    points, values = store.points(record), {}
    for point, plan in record.plans.items():
        blocks = store.table.blocks(record.model.identity, plan, record.settings["dtype"])
        samples = [sample for block in blocks for sample in block.samples]
        assert len(samples) == len(set(samples)), f"{path}: {plan} was measured twice"
        values[plan] = points.values(point.removed, points.samples()).tolist()
    return _without_made(record.to_dict()), values


# By name of the file, or of its folder.
_READERS: Mapping[str, Callable[[Path], Any]] = {
    SensitivityRecord.folder: _curves,
    MANIFEST: _run_manifest,
    MANIFEST_NAME: _export_manifest,
    "search.json": _search,
    "plan.json": _plan,
}


def _prepare(command: Command, root: Path, folder: Path) -> None:
    folder.mkdir()
    text = str(root / "text.jsonl")
    recipe = {**_RECIPE, "model": str(root / "model"), "corpora": [text]}
    for section in ("search", "evaluate"):
        recipe[section] = {**_RECIPE[section], "corpus": text}  # type: ignore[dict-item]
    (folder / "recipe.yaml").write_text(json.dumps(recipe))
    for line in command.before:
        run(_words(line, root), folder)


class Attempts:
    """The attempts on one command; the first thing it does is to run it undisturbed."""

    def __init__(self, command: Command, root: Path, seed: int) -> None:
        self._command, self._root = command, root
        self._words = _words(command.words, root)
        self._folder = root / "work"
        self._random = Random(f"{seed} {command.name}")  # noqa: S311
        self.tally = Tally()
        _prepare(command, root, self._folder)
        self._given = artifacts(self._folder)
        self._seconds = run(self._words, self._folder, command.processes)
        self._wanted = artifacts(self._folder)
        self._wanted_rows = rows(whole_lines(self._stats))
        assert len(self._wanted) > len(self._given)
        self._clear()

    @property
    def _stats(self) -> Path:
        """The statistics folder of every command."""
        return self._folder / "s"

    def _clear(self) -> None:
        self._folder.rename(self._root / f"done-{self._command.name}-{time.monotonic_ns()}")

    def attempt(self) -> int:
        """Kill, look, kill again perhaps, let it finish, look; how many kills came in time."""
        _prepare(self._command, self._root, self._folder)
        self._lines = whole_lines(self._stats)
        in_time = 0
        for _ in range(self._random.randint(1, _MOST_KILLS)):
            in_time += self._kill_once()
        run(self._words, self._folder, self._command.processes)
        self.tally.reruns += 1
        self._compare("after the rerun", artifacts(self._folder), is_whole=True)
        found = self._compare_rows("after the rerun")
        if lost := self._wanted_rows.keys() - found:
            self.tally.problems.append(f"after the rerun the table lacks {min(lost)}")
        names = (f"*{PARTIAL}", UNFINISHED_PLAN_NAME)
        left = [str(path) for name in names for path in self._folder.rglob(name)]
        if left:
            self.tally.problems.append(f"left behind: {left[0]}")
        self._clear()
        return in_time

    def _kill_once(self) -> bool:
        after = self._random.random() * self._seconds
        processes = self._command.processes
        victim = self._random.randrange(processes)
        if not kill(self._words, self._folder, after, processes, victim):
            self.tally.too_late += 1
            return False
        self.tally.kills += 1
        found = artifacts(self._folder)
        new = found.keys() - self._given.keys()
        self.tally.found += len(new)
        self.tally.nothing += not new
        self._compare(f"killed after {after:.3f} s", found, is_whole=False)
        self.tally.rows += len(self._compare_rows(f"killed after {after:.3f} s"))
        return True

    def _compare_rows(self, when: str) -> Set[Row]:
        """Compare the table with that of an uninterrupted run, and with its lines before."""
        before, self._lines = self._lines, whole_lines(self._stats)
        wrong = faults(before, self._lines, self._wanted_rows)
        self.tally.problems += [f"{self._command.name}, {when}: {fault}" for fault in wrong[:1]]
        return set() if wrong else rows(self._lines).keys()

    def _compare(self, when: str, found: Mapping[str, Any], *, is_whole: bool) -> None:
        differ = [place for place in found if found[place] != self._wanted.get(place)]
        lost = sorted((self._wanted if is_whole else self._given).keys() - found.keys())
        for kind, places in (("differs", differ), ("is lost", lost)):
            if places:
                self.tally.problems.append(f"{self._command.name}, {when}: {places[0]} {kind}")


def table_of(tallies: Mapping[str, Tally]) -> pd.DataFrame:
    """Table of a row for each command, see `Tally`."""
    facts = [
        {
            "command": name,
            "kills": tally.kills,
            "too_late": tally.too_late,
            "nothing_yet": tally.nothing,
            "complete_found": tally.found,
            "rows_found": tally.rows,
            "reruns": tally.reruns,
            "problems": len(tally.problems),
        }
        for name, tally in tallies.items()
    ]
    return pd.DataFrame(facts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=3, help="of each command")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--command", action="append", help="name of a command")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    os.environ["HF_HUB_OFFLINE"] = "1"
    tallies = {}
    with tempfile.TemporaryDirectory() as folder:
        os.environ["MOEPRUNE_STATE_DIR"] = f"{folder}/state"
        make_world(Path(folder))
        # Ctrl-C ends it early, with the figures so far.
        with contextlib.suppress(KeyboardInterrupt):
            for command in COMMANDS:
                if chosen.command and command.name not in chosen.command:
                    continue
                attempts = Attempts(command, Path(folder), chosen.seed)
                tallies[command.name] = attempts.tally
                while attempts.tally.kills < chosen.kills and not attempts.tally.problems:
                    attempts.attempt()
                print(f"{command.name}: {attempts.tally.kills} kills", file=sys.stderr, flush=True)
    problems = [problem for tally in tallies.values() for problem in tally.problems]
    for problem in problems:
        print(problem)
    table = table_of(tallies)
    print(table.to_string(index=False))
    print(f"{table['kills'].sum()} kills, {len(problems)} problems")
    sys.exit(bool(problems))


if __name__ == "__main__":
    main()
