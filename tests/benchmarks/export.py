"""Export with sha256 and fsync against `cp` and `sync` of the bytes that it writes."""

import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from synthetic import write_checkpoint
from timing import in_turns, peak_memory_mib, report

from analysis.checkpoint import open_checkpoint
from analysis.drain import drain
from analysis.model import MoEModel, describe_model
from pruning.plan import PruningPlan, model_ref
from pruning.surgery.export import export_checkpoint

LAYERS, EXPERTS, HIDDEN, WIDTH = 8, 64, 1024, 512


def half(model: MoEModel) -> PruningPlan:
    """Every second expert goes, so that nothing is contiguous."""
    kept = {layer.index: tuple(range(0, layer.num_experts, 2)) for layer in model.layers}
    return PruningPlan(model_ref(model), kept)


def export(path: Path, out: Path) -> None:
    shutil.rmtree(out, ignore_errors=True)
    model = describe_model(open_checkpoint(path))
    drain(export_checkpoint(model, half(model), out))


def copy(source: Path, target: Path) -> None:
    """`cp` and `sync` of what the export wrote."""
    shutil.rmtree(target, ignore_errors=True)
    files = [str(file) for file in source.iterdir()]
    target.mkdir()
    subprocess.run(["cp", *files, str(target)], check=True)
    subprocess.run(["sync", *(str(file) for file in target.iterdir()), str(target)], check=True)


def run(layout: str, folder: Path) -> None:
    source = folder / layout
    source.mkdir()
    write_checkpoint(source, LAYERS, EXPERTS, (HIDDEN, WIDTH), fused=layout == "fused")
    out, copied = folder / f"{layout}-out", folder / f"{layout}-copy"
    export(source, out)
    size = sum(file.stat().st_size for file in out.iterdir())
    seconds = in_turns(
        {
            "cp and sync of the output": lambda: copy(out, copied),
            "export": lambda: export(source, folder / f"{layout}-again"),
        },
        rounds=5,
    )
    report(f"{layout}: {size / 2**30:.2f} GiB written", seconds, "cp and sync of the output")
    subprocess.run([sys.executable, __file__, str(source), str(folder / "peak")], check=True)
    for used in (source, out, copied, folder / f"{layout}-again", folder / "peak"):
        shutil.rmtree(used)


def main() -> None:
    if len(sys.argv) == 3:
        export(Path(sys.argv[1]), Path(sys.argv[2]))
        print(f"  peak memory of a process that does nothing else: {peak_memory_mib():.0f} MiB")
        return
    with TemporaryDirectory(dir=sys.argv[1] if len(sys.argv) > 1 else None) as folder:
        for layout in ("per-expert", "fused"):
            run(layout, Path(folder))


if __name__ == "__main__":
    main()
