"""Sections of a recording, each in a process of its own with an environment of its own."""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from pathlib import Path

# Section -> module that records it; imported late, for it imports the program.
SECTIONS: Mapping[str, str] = {
    name: f"snapshot.{name}"
    for name in ("charts", "plans", "sizes", "exports", "commands", "pages")
}
SCRIPT = Path(__file__).resolve().parent.parent / "snapshot.py"
_MOST_SECONDS = 1200
_KEPT = ("PATH", "LANG", "LC_ALL", "VIRTUAL_ENV", "SYSTEMROOT")


def record(out: Path, names: list[str], root: Path, jobs: int) -> int:
    """Record these sections of the checkout at `root`; 1 if one of them ended early, else 0."""
    out.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(jobs) as pool:
        ended = list(pool.map(lambda name: _in_a_process(name, out.resolve(), root), names))
    return int(any(ended))


def _in_a_process(name: str, out: Path, root: Path) -> int:
    """Record one section in a fresh process; its exit status."""
    began = time.monotonic()
    shutil.rmtree(out / name, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix="snapshot-") as folder:
        work = Path(folder) / "work"
        work.mkdir()
        words = [sys.executable, str(SCRIPT), "section", name, str(out / name)]
        ended = subprocess.run(
            words,
            cwd=work,
            env=_environment(root, Path(folder)),
            timeout=_MOST_SECONDS,
            check=False,
        )
    found = sum(path.is_file() for path in (out / name).rglob("*"))
    said = "" if ended.returncode == 0 else f", ended early with status {ended.returncode}"
    print(f"{name}: {found} files, {time.monotonic() - began:.0f} s{said}", flush=True)
    return ended.returncode


def _environment(root: Path, folder: Path) -> dict[str, str]:
    """Nothing of the user's, no network, one thread, lines of one width."""
    home = folder / "home"
    kept = {name: os.environ[name] for name in _KEPT if name in os.environ}
    return {
        **kept,
        "PYTHONPATH": str(root),
        "PYTHONHASHSEED": "0",
        "PYTHONWARNINGS": "ignore",
        "PYTHONDONTWRITEBYTECODE": "1",
        "SNAPSHOT_ROOT": str(root),
        "HOME": str(home),
        "XDG_CACHE_HOME": str(home / "cache"),
        "MOEPRUNE_STATE_DIR": str(folder / "state"),
        "MOEPRUNE_EXPORT_ROOT": str(folder / "exports"),
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
        # Compiled numbers are the same for all sections and runs, and slow to make.
        "NUMBA_CACHE_DIR": str(Path(tempfile.gettempdir()) / "snapshot-numba"),
        "COLUMNS": "100",
        "TERM": "dumb",
        "NO_COLOR": "1",
        "TZ": "UTC",
    }


def record_section(name: str, out: Path) -> None:
    """Write all files of one section; what fails is a text in its file."""
    out.mkdir(parents=True, exist_ok=True)
    written: Iterator[tuple[str, str]] = import_module(SECTIONS[name]).texts()
    for file, text in written:
        (out / file).write_text(text, encoding="utf-8")
