"""Verification: bytes read against bytes needed, and logits layer by layer against the whole model.

`python tools/benchmarks/verify.py [FOLDER] [--layers N]`: four layers are 0.8 GB, half of whose
experts are exported. Each way runs in a process of its own, in turns, on files that are in memory.
"""

import argparse
import subprocess
import sys
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from timing import peak_memory_mib

from analysis.drain import drain
from analysis.model.opening import load_model_index
from pruning.surgery.export import export_checkpoint
from pruning.surgery.verify import verify_export

EXPERTS, HIDDEN, WIDTH = 64, 1024, 512
WAYS = {
    "bytes of the export": ("bytes",),
    "bytes of both": ("bytes", "source"),
    "logits, whole": ("logits", "source"),
    "logits, layer by layer": ("logits", "source", "layers"),
}


def read_so_far() -> int:
    """Bytes that this process read by calls; mapped files do not count (Linux)."""
    lines = Path("/proc/self/io").read_text().splitlines()
    return int(dict(line.split(": ") for line in lines)["rchar"])


def once(folder: Path, level: str, *words: str) -> None:
    """Verify in this process; prints GiB read, CPU seconds and the peak in MiB."""
    import time

    if level == "logits":  # loading libraries is not the work
        import pruning.surgery.streamed_run  # noqa: F401
    source = folder / "source" if "source" in words else None
    way = {"stream_layers": True} if "layers" in words else {}
    before, base, started = read_so_far(), peak_memory_mib(), time.process_time()
    report = drain(verify_export(folder / "out", level=level, source=source, **way))
    seconds = time.process_time() - started
    assert report.ok, report.checks
    print((read_so_far() - before) / 2**30, seconds, peak_memory_mib(), base)


def bytes_of(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.glob("*.safetensors"))


def run(folder: Path, layers: int, rounds: int) -> None:
    # Here and not above: it needs torch, which a check of bytes does not; its memory would count.
    from export import half
    from synthetic import olmoe_config, write_model

    write_model(folder / "source", olmoe_config(layers, EXPERTS, (HIDDEN, WIDTH)))
    model = load_model_index(str(folder / "source"))
    drain(export_checkpoint(model, half(model), folder / "out"))
    exported = bytes_of(folder / "out") / 2**30
    print(f"export of {exported:.2f} GiB, of {bytes_of(folder / 'source') / 2**30:.2f} GiB")
    results: dict[str, list[list[float]]] = {way: [] for way in WAYS}
    for _ in range(rounds):
        for way, words in WAYS.items():
            command = [sys.executable, __file__, str(folder), "--only", *words]
            done = subprocess.run(command, check=True, capture_output=True, text=True)
            results[way].append([float(word) for word in done.stdout.split()[-4:]])
    for way, rows in results.items():
        read, seconds, peak, base = (median(column) for column in zip(*rows, strict=True))
        needed = exported * (2 if "source" in WAYS[way] else 1)
        print(
            f"  {way:<24} {read:6.2f} GiB read by calls, {read / needed:5.3f} x needed;"
            f" {seconds:6.2f} s of CPU; peak {peak:5.0f} MiB, {peak - base:.0f} above its libraries"
        )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", nargs="?", type=Path)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", nargs="+", help="verify FOLDER so, once")
    given = parser.parse_args()
    if given.only:
        once(given.folder, *given.only)
        return
    with TemporaryDirectory(dir=given.folder) as folder:
        run(Path(folder), given.layers, given.rounds)


if __name__ == "__main__":
    main()
