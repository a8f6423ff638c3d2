"""One process against several that share the layers of a model: work, bytes read, memory.

`PYTHONPATH=.:tests python -m tools.benchmarks.processes FOLDER [--model OLMoE-1B-7B-0924]
[--layers 6] [--tokens 4096] [--samples 8] [--processes 2]`

Writes random weights of a published model's shapes into a scratch folder, as `real_size` does, then
calibrates and evaluates with one process and with several, each with one thread. The speed-up is
the processor time of the one against that of the busiest of the several: what the clock would say
where each process has a core of its own. Start-up, measured as the same command once more, whose
result is known then, is left out of the first figure and in the second. Statistics and losses must
be equal.
"""

import argparse
import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from analysis.model.moe_model import MoEModel
from analysis.stats.store import StatsStore
from layouts.published import LAYOUTS
from pruning.records.evaluation import EvaluationStore
from tools.benchmarks.real_size import BATCH, CHILD, SEQ_LEN, prepared


@dataclass(frozen=True)
class Used:
    """What one process took."""

    cpu: float  # seconds
    peak: int  # bytes of memory
    read: int  # bytes; of one process alone, pages of files that are mapped do not count


def run(scratch: Path, words: Sequence[object], processes: int) -> list[Used]:
    """Run a command in so many processes, with the variables that torchrun gives them."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
    shared = {"WORLD_SIZE": processes, "LOCAL_WORLD_SIZE": processes, "MASTER_PORT": port}
    shared |= {"MASTER_ADDR": "localhost", "OMP_NUM_THREADS": 1}
    children = []
    for rank in range(processes):
        own = {"RANK": rank, "LOCAL_RANK": rank, "USED": scratch / f"used-{rank}"}
        more = {name: str(value) for name, value in (shared | own).items()}
        command = [sys.executable, "-c", CHILD, *map(str, words)]
        children.append(
            subprocess.Popen(command, env=os.environ | more, stdout=subprocess.DEVNULL, cwd=scratch)
        )
    used = []
    for rank, child in enumerate(children):
        _, status, usage = os.wait4(child.pid, 0)
        if status:
            sys.exit(f"moeprune {' '.join(map(str, words))} failed")
        lines = (scratch / f"used-{rank}").read_text().splitlines()
        facts = dict(line.split(":", 1) for line in lines)
        peak = int(facts["VmHWM"].split()[0]) << 10
        used.append(Used(usage.ru_utime + usage.ru_stime, peak, int(facts["rchar"])))
    return used


def results(stats: Path, model: MoEModel) -> list[object]:
    """Hashes of the statistics in a folder, and all that was measured of plans."""
    runs = [dict(run.manifest.files) for run in StatsStore(stats).runs()]
    records = EvaluationStore([stats]).records(model.identity)
    return [runs, [(record.plan_digest, dict(record.metrics)) for record in records]]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("folder", type=Path, help="a scratch folder")
    parser.add_argument("--model", default="OLMoE-1B-7B-0924", choices=sorted(LAYOUTS))
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--tokens", type=int, default=4096, help="of the calibration")
    parser.add_argument("--samples", type=int, default=8, help="of the evaluation, of 512 tokens")
    parser.add_argument("--processes", type=int, default=2)
    given = parser.parse_args()
    scratch = given.folder.resolve()
    scratch.mkdir(parents=True, exist_ok=True)
    model = prepared(scratch, given.model, given.layers, given.tokens)
    path = model.checkpoint.path
    gib = model.checkpoint.nbytes / 2**30
    print(f"{given.model}, {given.layers} layers, {gib:.2f} GiB\n")
    print(
        "| command | processes | CPU s of each | speed-up | GiB read by each | peak MiB of each |"
    )
    print("|---|---|---|---|---|---|")
    common = ("--seq-len", SEQ_LEN, "--batch-size", BATCH, "--device", "cpu")
    text, held_out = scratch / "read.jsonl", scratch / "samples.jsonl"
    ids = np.random.default_rng(1).integers(3, model.config["vocab_size"], (given.samples, SEQ_LEN))
    held_out.write_text("".join(json.dumps({"input_ids": row}) + "\n" for row in ids.tolist()))
    kept: dict[int, list[object]] = {}
    alone: dict[str, tuple[float, float]] = {}  # processor time, and that of a start
    for processes in (1, given.processes):
        stats = ("--stats-dir", scratch / f"stats-{processes}")
        shutil.rmtree(stats[1], ignore_errors=True)
        calibrate = ("calibrate", path, "--corpus", text, "--tokens", given.tokens)
        plan = scratch / "plan.json"
        commands = {
            "calibrate": (*calibrate, *common, *stats),
            "plan": ("plan", path, "--sparsity", "50%", "-o", plan, *stats),
            "evaluate": (
                *(
                    "evaluate",
                    path,
                    "--plan",
                    plan,
                    "--corpus",
                    held_out,
                    "--samples",
                    given.samples,
                ),
                *("--count", "all", *common, *stats),
            ),
        }
        for name, words in commands.items():
            used = run(scratch, words, 1 if name == "plan" else processes)
            if name == "plan":
                continue
            busiest = max(process.cpu for process in used)
            if processes == 1:
                alone[name] = busiest, run(scratch, words, 1)[0].cpu
            one, start = alone[name]
            ratio = f"{(one - start) / (busiest - start):.2f}, {one / busiest:.2f}"
            cells = (
                f"{name} | {processes}",
                ", ".join(f"{process.cpu:.0f}" for process in used),
                ratio if processes > 1 else f"start {start:.0f} s",
                ", ".join(f"{process.read / 2**30:.2f}" for process in used),
                ", ".join(f"{process.peak / 2**20:,.0f}" for process in used),
            )
            print(f"| {' | '.join(cells)} |", flush=True)
        kept[processes] = results(stats[1], model)
    if kept[1] != kept[given.processes]:
        sys.exit("The statistics or the losses differ.")
    print("\nStatistics and losses are equal, bit for bit.")


if __name__ == "__main__":
    main()
