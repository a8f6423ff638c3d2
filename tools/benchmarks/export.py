"""Export with sha256 and fsync against `cp` and `sync` of the bytes that it writes.

`python tools/benchmarks/export.py [FOLDER] [--layers N] [--warm]`: 40 layers are 8 GB. Both read
from the disk: what they read is dropped from memory before, unless `--warm`. Beside them, hashing
on two cores, and all that the command does after its start. By the clock, then by the processor;
what was written before is removed first, which does not count.
"""

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory

from timing import in_turns, peak_memory_mib, report

from analysis.checkpoint.opening import open_checkpoint
from analysis.drain import drain
from analysis.model.describing import describe_model
from analysis.model.moe_model import MoEModel
from pruning.plan.plan import PruningPlan, model_ref
from pruning.requests.model import ExportRequest
from pruning.surgery.export import export_checkpoint
from pruning.tasks.export import export_run

EXPERTS, HIDDEN, WIDTH = 64, 1024, 512
FEW_LAYERS = 8  # of more, fewer rounds are measured
is_warm = False  # see `--warm`


def half(model: MoEModel) -> PruningPlan:
    """Every second expert goes, so that nothing is contiguous."""
    kept = {layer.index: tuple(range(0, layer.num_experts, 2)) for layer in model.layers}
    return PruningPlan(model_ref(model), kept)


def forget(folder: Path) -> None:
    """Drop the files from memory, so that whoever reads them next reads the disk."""
    for path in () if is_warm else folder.glob("*.safetensors"):
        with path.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def export(path: Path, out: Path) -> None:
    model = describe_model(open_checkpoint(path))
    drain(export_checkpoint(model, half(model), out))


def whole(path: Path, out: Path) -> None:
    """All that `moeprune export` does after its start, records of what was measured included."""
    plan = half(describe_model(open_checkpoint(path))).to_dict()
    stats = out.with_name("stats")
    drain(export_run(ExportRequest(model=str(path), plan=plan, out=out, stats_dir=stats)))


def hash_files(folder: Path) -> None:
    """SHA-256 of what the export wrote, on two cores."""

    def digest(path: Path) -> str:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(digest, folder.glob("*.safetensors")))


def processor_time() -> float:
    """Of this process and those that it started, in seconds."""
    used = os.times()
    return used.user + used.system + used.children_user + used.children_system


def copy(source: Path, target: Path) -> None:
    """`cp` and `sync` of what the export wrote."""
    files = [str(file) for file in source.iterdir()]
    target.mkdir()
    subprocess.run(["cp", *files, str(target)], check=True)
    subprocess.run(["sync", *(str(file) for file in target.iterdir()), str(target)], check=True)


def run(layout: str, layers: int, folder: Path) -> None:
    # Here and not above: it needs torch, which an export does not; its memory would count.
    from synthetic import write_checkpoint

    source = folder / layout
    source.mkdir()
    write_checkpoint(source, layers, EXPERTS, (HIDDEN, WIDTH), fused=layout == "fused")
    subprocess.run(["sync"], check=True)
    out, copied = folder / f"{layout}-out", folder / f"{layout}-copy"
    export(source, out)
    size = sum(file.stat().st_size for file in out.iterdir())
    again = folder / f"{layout}-again"

    def clear() -> None:
        """Nothing that was written before is there, nor waits for the disk."""
        for used in (copied, again):
            shutil.rmtree(used, ignore_errors=True)
        forget(source)
        forget(out)
        subprocess.run(["sync"], check=True)

    actions: dict[str, Callable[[], None]] = {
        "cp and sync of the output": lambda: copy(out, copied),
        "hashing the output": lambda: hash_files(out),
        "export": lambda: export(source, again),
        "the whole command": lambda: whole(source, again),
    }
    rounds = 5 if layers <= FEW_LAYERS else 3
    for name, clock in (("clock", time.perf_counter), ("processor", processor_time)):
        seconds = in_turns(actions, rounds, clock, clear)
        title = f"{layout}: {size / 2**30:.2f} GiB written, by the {name}"
        report(title, seconds, "cp and sync of the output")
    alone = [sys.executable, __file__, str(source), "--only-to", str(folder / "peak")]
    subprocess.run(alone, check=True)
    clear()
    for used in (source, out, folder / "peak"):
        shutil.rmtree(used)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", nargs="?", type=Path)
    parser.add_argument("--layers", type=int, default=FEW_LAYERS)
    parser.add_argument("--warm", action="store_true", help="files stay in memory")
    parser.add_argument("--only-to", type=Path, help="export FOLDER there once, for its memory")
    given = parser.parse_args()
    global is_warm
    is_warm = given.warm
    if given.only_to:
        export(given.folder, given.only_to)
        print(f"  peak memory of a process that does nothing else: {peak_memory_mib():.0f} MiB")
        return
    with TemporaryDirectory(dir=given.folder) as folder:
        for layout in ("per-expert", "fused"):
            run(layout, given.layers, Path(folder))


if __name__ == "__main__":
    main()
