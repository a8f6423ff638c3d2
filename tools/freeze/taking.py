"""Takes every kind of frozen value, in a process with a fixed environment."""

import hashlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from tools.freeze.values import KINDS, Value, stable, write

ROOT = Path(__file__).parents[2]
_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")
# One thread, so that sums have one order however many cores there are; no network.
_FIXED = {
    **dict.fromkeys(_THREADS, "1"),
    "HF_HUB_OFFLINE": "1",
    "LC_ALL": "C.UTF-8",
    "PYTHONHASHSEED": "0",
    "PYTHONPATH": str(ROOT),
    "TERM": "dumb",
    "TZ": "UTC",
}
_DROPPED = ("MOEPRUNE_", "SLURM_", "HF_", "COLUMNS", "LINES")
# Of a model that runs in float32: its sums differ between processors.
_DIGITS_OF_RUNS = 2
_TEXTS = (".csv", ".json", ".jsonl", ".html", ".md", ".txt", ".yaml", ".jinja", ".py")
_NO_JSON = ("--help", "--quiet")


def take(folder: Path, kinds: Sequence[str] = KINDS, *, in_full: bool = False) -> None:
    """Write the values of these kinds into a folder, from a process of their own."""
    words = [str(folder.absolute()), *kinds, *(["--in-full"] if in_full else [])]
    with TemporaryDirectory(prefix="freeze-") as home:
        kept = {name: text for name, text in os.environ.items() if not name.startswith(_DROPPED)}
        own = {"HOME": home, "XDG_STATE_HOME": f"{home}/state"}
        # Not a terminal: tables and help have one width.
        subprocess.run(  # noqa: S603  (this module)
            [sys.executable, "-m", "tools.freeze.taking", *words],
            cwd=ROOT, env={**kept, **_FIXED, **own}, check=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
        )  # fmt: skip


def _plans(work: Path, folders: Mapping[Path, str]) -> Iterator[Value]:
    from tools.freeze import plans

    plans.write_files(work)
    yield from plans.values_of(plans.table(work), folders)


def _charts(work: Path, folders: Mapping[Path, str]) -> Iterator[Value]:
    from tools.freeze import lines

    yield from run(lines.charts(), work, folders)


def _scores(work: Path, folders: Mapping[Path, str]) -> Iterator[Value]:
    from tools.freeze import lines

    yield from run(lines.scores(), work, folders)


def _commands(work: Path, folders: Mapping[Path, str]) -> Iterator[Value]:
    from tools.freeze import lines, plans

    plans.write_files(work)
    yield from run(lines.helps(), work, folders)
    yield from run(lines.looks(), work, folders)
    yield from run(lines.runs(), work, folders, _DIGITS_OF_RUNS)


def _exports(work: Path, folders: Mapping[Path, str]) -> Iterator[Value]:
    from tools.freeze import lines

    for words in lines.exports():
        yield from run([words], work, folders)
        if words[-1] == "uniform.json" and words[0] == "plan":
            plan = json.loads((work / words[-1]).read_text())
            (work / "bits.json").write_text(json.dumps({**plan, "bits": "4"}))


def records(work: Path, folders: Mapping[Path, str]) -> Iterator[Value]:
    """The files that ship, by folder, and what the product reads of them, by kind."""
    from tools.freeze import doors

    del work, folders
    for path in sorted(doors.SHIPPED.iterdir()):
        files = sorted(file for file in path.rglob("*") if file.is_file()) or [path]
        digests = (
            f"{hashlib.sha256(file.read_bytes()).hexdigest()} {file.relative_to(path)}"
            for file in files
        )
        yield Value(f"files of {path.name}", f"{len(files)} files", "\n".join(digests))
    for kind, records in doors.records().items():
        yield Value(f"records of {kind}", f"{len(records)} records", "\n".join(records))


_TAKEN: Mapping[str, Callable[[Path, Mapping[Path, str]], Iterator[Value]]] = {
    "charts": _charts,
    "commands": _commands,
    "exports": _exports,
    "plans": _plans,
    "records": records,
    "scores": _scores,
}


def run(
    lines: Iterable[Sequence[str]], work: Path, folders: Mapping[Path, str], digits: int = 6
) -> Iterator[Value]:
    """Two values a line or more: how it ends with what it prints, and every file that it writes."""
    from tools.freeze import doors

    before = _files(work)
    for words in lines:
        line = " ".join(["moeprune", *words])
        is_json = not set(_NO_JSON).intersection(words)
        end, output = doors.run_command([*words, *(["--json"] if is_json else [])])
        text = stable(output, folders, digits)
        yield Value(line, stable(f"{end} {_error(output)}".strip(), folders), text)
        after = _files(work)
        for path in sorted(path for path in after if after[path] != before.get(path)):
            yield _value_of(path, line, work, folders, digits)
        before = after


def _error(output: str) -> str:
    """The error of a command's JSON; nothing if it has none or prints no JSON."""
    if not output.startswith("{"):
        return ""
    return str(json.loads(output).get("error", ""))


def _files(work: Path) -> dict[Path, tuple[int, int]]:
    """Every file below a folder, with what changes when it is written."""
    stats = ((path, path.stat()) for path in work.rglob("*") if path.is_file())
    return {path: (stat.st_mtime_ns, stat.st_ino) for path, stat in stats}


def _value_of(path: Path, line: str, work: Path, folders: Mapping[Path, str], digits: int) -> Value:
    from tools.freeze import lines

    place = path.relative_to(work)
    # A shard of measurements has a name that no other process has.
    shown = place.parent / "SHARD" if place.parent.name == "measurements" else place
    name = f"{line} > {shown}"
    if place.parts[0].startswith(lines.STORE):
        return Value(name)  # a record's name has the digest of what decides its numbers
    content: str | bytes = path.read_bytes()
    if path.suffix in _TEXTS:
        content = stable(path.read_text(), folders, digits)
    return Value(name, text=content)


def main(arguments: Sequence[str]) -> None:
    """Take the kinds that are named after a folder; `--in-full` writes the values too."""
    folder, *kinds = (word for word in arguments if word != "--in-full")
    for kind in kinds:
        start = time.monotonic()
        with TemporaryDirectory(prefix="freeze-") as name, TemporaryDirectory() as cache:
            work = Path(name).resolve()
            os.chdir(work)
            os.environ["XDG_CACHE_HOME"] = cache  # no kind reads what another has measured
            folders = {work: "WORK", ROOT: "ROOT", Path(cache): "CACHE"}
            values = _TAKEN[kind](work, folders)
            count = write(Path(folder), kind, values, in_full="--in-full" in arguments)
            os.chdir(ROOT)
        sys.stderr.write(f"{kind}: {count} values, {time.monotonic() - start:.0f} s\n")


if __name__ == "__main__":
    main(sys.argv[1:])
