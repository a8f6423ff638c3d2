"""A command line in this process: its exit status, what it printed, what it wrote."""

import hashlib
import logging
import os
import shlex
import sys
import tempfile
import traceback
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from importlib import import_module
from io import StringIO
from pathlib import Path

from snapshot.masks import masked

ROOT = Path(os.environ.get("SNAPSHOT_ROOT", "."))
_READ_AS_TEXT = (".csv", ".json", ".jsonl", ".yaml", ".md")
_MOST_CHARACTERS = 60_000


def places() -> dict[str, Path]:
    """Folders by the names that stand for them in a recording."""
    work = Path.cwd()
    shared = Path(tempfile.gettempdir()) / "snapshot-numba"
    return {"work": work, "folder": work.parent, "root": ROOT, "numba": shared}


@dataclass(frozen=True)
class Outcome:
    """What came of a command line."""

    line: str
    code: int | str
    out: str
    err: str
    files: str

    @property
    def text(self) -> str:
        """All of it, masked."""
        parts = {"stdout": self.out, "stderr": self.err, "files": self.files}
        shown = "".join(f"--- {name}\n{_short(part)}\n" for name, part in parts.items() if part)
        return masked(f"$ moeprune {self.line}\nexit {self.code}\n{shown}", places())


def _short(text: str) -> str:
    if len(text) <= _MOST_CHARACTERS:
        return text.rstrip("\n")
    digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    return f"{text[:_MOST_CHARACTERS]}\n... {len(text)} characters, sha256 {digest}"


def run_line(line: str) -> Outcome:
    """Run a command line, without `moeprune` in front, in the working directory."""
    before = _state(Path.cwd())
    code, out, err = _call(shlex.split(line))
    after = _state(Path.cwd())
    changed = [path for path, state in sorted(after.items()) if before.get(path) != state]
    gone = [f"{path} is gone" for path in sorted(before) if path not in after]
    files = "\n".join([*(f"{path} {_digest(Path(path))}" for path in changed), *gone])
    return Outcome(line, code, out, err, files)


def _call(words: list[str]) -> tuple[int | str, str, str]:
    out, err = StringIO(), StringIO()
    code: int | str = "without SystemExit"
    # Each command sets up logging again; else all would go to the first one's stream.
    logging.getLogger().handlers.clear()
    sys.argv = ["moeprune", *words]
    with redirect_stdout(out), redirect_stderr(err):
        try:
            from app.cli import main

            main()
        except SystemExit as ended:
            code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
            if isinstance(ended.code, str):
                err.write(ended.code)
        except BaseException:  # noqa: BLE001  (a failure is what is to be recorded)
            code = "exception"
            err.write(last_lines(traceback.format_exc()))
    return code, out.getvalue(), err.getvalue()


def last_lines(trace: str) -> str:
    """A trace without its frames, whose lines and files a refactoring moves."""
    return "FAILED: " + trace.strip().splitlines()[-1] + "\n"


def _state(folder: Path) -> dict[str, tuple[int, int]]:
    """Size and time of every file by its path below the folder."""
    paths = (path for path in folder.rglob("*") if path.is_file())
    return {
        path.relative_to(folder).as_posix(): (path.stat().st_size, path.stat().st_mtime_ns)
        for path in paths
    }


def _digest(path: Path) -> str:
    """The digest of texts, masked, of tables and of weights; of other files that they are there."""
    if path.suffix in _READ_AS_TEXT:
        text = masked(path.read_text("utf-8"), places())
        return "sha256 " + hashlib.sha256(text.encode()).hexdigest()[:16]
    if path.suffix == ".parquet":
        table = import_module("pandas").read_parquet(path).to_csv()
        return "table sha256 " + hashlib.sha256(table.encode()).hexdigest()[:16]
    if path.suffix == ".safetensors":
        return "sha256 " + hashlib.sha256(path.read_bytes()).hexdigest()[:16]
    return "written"
