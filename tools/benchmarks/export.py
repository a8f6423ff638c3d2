"""Export with sha256 and fsync against `cp` and `sync` of the bytes that it writes.

`python tools/benchmarks/export.py [FOLDER] [--layers N]`: 40 layers are 8 GB. Both read from the
disk: what they read is dropped from memory before.
"""

import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from timing import in_turns, peak_memory_mib, report

from analysis.checkpoint.opening import open_checkpoint
from analysis.drain import drain
from analysis.model.describing import describe_model
from analysis.model.moe_model import MoEModel
from pruning.plan.plan import PruningPlan, model_ref
from pruning.surgery.export import export_checkpoint

EXPERTS, HIDDEN, WIDTH = 64, 1024, 512
FEW_LAYERS = 8  # of more, fewer rounds are measured


def half(model: MoEModel) -> PruningPlan:
    """Every second expert goes, so that nothing is contiguous."""
    kept = {layer.index: tuple(range(0, layer.num_experts, 2)) for layer in model.layers}
    return PruningPlan(model_ref(model), kept)


def forget(folder: Path) -> None:
    """Drop the files from memory, so that whoever reads them next reads the disk."""
    for path in folder.glob("*.safetensors"):
        with path.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def export(path: Path, out: Path) -> None:
    shutil.rmtree(out, ignore_errors=True)
    forget(path)
    model = describe_model(open_checkpoint(path))
    drain(export_checkpoint(model, half(model), out))


def copy(source: Path, target: Path) -> None:
    """`cp` and `sync` of what the export wrote."""
    shutil.rmtree(target, ignore_errors=True)
    forget(source)
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
    seconds = in_turns(
        {
            "cp and sync of the output": lambda: copy(out, copied),
            "export": lambda: export(source, folder / f"{layout}-again"),
        },
        rounds=5 if layers <= FEW_LAYERS else 3,
    )
    report(f"{layout}: {size / 2**30:.2f} GiB written", seconds, "cp and sync of the output")
    alone = [sys.executable, __file__, str(source), "--only-to", str(folder / "peak")]
    subprocess.run(alone, check=True)
    for used in (source, out, copied, folder / f"{layout}-again", folder / "peak"):
        shutil.rmtree(used)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", nargs="?", type=Path)
    parser.add_argument("--layers", type=int, default=FEW_LAYERS)
    parser.add_argument("--only-to", type=Path, help="export FOLDER there once, for its memory")
    given = parser.parse_args()
    if given.only_to:
        export(given.folder, given.only_to)
        print(f"  peak memory of a process that does nothing else: {peak_memory_mib():.0f} MiB")
        return
    with TemporaryDirectory(dir=given.folder) as folder:
        for layout in ("per-expert", "fused"):
            run(layout, given.layers, Path(folder))


if __name__ == "__main__":
    main()
