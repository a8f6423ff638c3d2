"""Weight statistics against one-thread numpy.copyto of the same bf16 bytes; peak memory."""

import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from synthetic import write_checkpoint
from timing import in_turns, peak_memory_mib, report

from analysis.calibration.weights import measure_weights
from analysis.checkpoint.opening import open_checkpoint
from analysis.drain import drain
from analysis.model.describing import describe_model

# Three layers of OLMoE-1B-7B.
LAYERS, EXPERTS, HIDDEN, WIDTH = 3, 64, 2048, 1024


def peak(path: Path) -> None:
    """Memory of a process that does nothing else."""
    before = peak_memory_mib()
    drain(measure_weights(describe_model(open_checkpoint(path))))
    after = peak_memory_mib()
    print(f"  peak memory {after:.0f} MiB, {after - before:.0f} MiB above start")


def main() -> None:
    if len(sys.argv) > 1:
        peak(Path(sys.argv[1]))
        return
    with TemporaryDirectory() as folder:
        path = Path(folder)
        write_checkpoint(path, LAYERS, EXPERTS, (HIDDEN, WIDTH))
        model = describe_model(open_checkpoint(path))
        shards = [path / shard.name for shard in model.checkpoint.shards]
        source = np.concatenate([np.fromfile(shard, dtype=np.uint8) for shard in shards])
        target = np.empty_like(source)
        mapped = [np.memmap(shard, dtype=np.uint8, mode="r") for shard in shards]

        def copy_mapped() -> None:
            for part in mapped:
                np.copyto(target[: len(part)], part)

        seconds = in_turns(
            {
                "numpy.copyto, in memory": lambda: np.copyto(target, source),
                "numpy.copyto, from the mapped file": copy_mapped,
                "weight statistics": lambda: drain(measure_weights(model)),
            }
        )
        title = f"{len(source) / 2**30:.2f} GiB of bf16 in {len(shards)} shards"
        report(title, seconds, "numpy.copyto, in memory")
        subprocess.run([sys.executable, __file__, str(path)], check=True)


if __name__ == "__main__":
    main()
