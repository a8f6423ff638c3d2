"""One process against several that share the layers of a model: work, bytes read, memory.

`PYTHONPATH=.:tests python -m tools.benchmarks.processes FOLDER [--model OLMoE-1B-7B-0924]
[--layers 6] [--experts 16] [--tokens 4096] [--samples 8] [--levels 2] [--seq-len 512]
[--processes 2] [--company]`

Writes random weights of a published model's shapes into a scratch folder, as `real_size` does, then
calibrates, evaluates and measures curves with one process and with several, each with one thread.
They are forked when all is imported, so start-up does not count. The speed-up is the processor
time of the one against that of the busiest of the several: what the clock would say where each has
a core of its own. On an idle machine the one has caches and memory for itself, which several share;
with `--company` others keep as many cores busy. Statistics, losses and curves must be equal.
"""

import argparse
import json
import os
import shutil
import signal
import socket
import sys
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from analysis.calibration import run as _calibration  # noqa: F401  (imported before a fork)
from analysis.model.moe_model import MoEModel
from analysis.stats.store import StatsStore
from app.cli import action as _commands  # noqa: F401
from app.cli import calibrate as _calibrate  # noqa: F401
from app.cli import main as moeprune
from layouts.published import LAYOUTS
from pruning.engine import run as _evaluation  # noqa: F401
from pruning.records.evaluation import EvaluationStore
from pruning.records.sensitivity import SensitivityStore
from pruning.search import sensitivity as _sensitivity  # noqa: F401
from pruning.search import shared_runs as _shared_runs  # noqa: F401
from tools.benchmarks.real_size import BATCH, prepared


@dataclass(frozen=True)
class Used:
    """What one process took."""

    cpu: float  # seconds
    peak: int  # bytes of memory, libraries included
    read: int  # bytes; pages of files that are mapped, as one process alone does, do not count


def run(scratch: Path, words: Sequence[object], processes: int) -> list[Used]:
    """Run a command in so many processes, with the variables that torchrun gives them."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
    shared = {"WORLD_SIZE": processes, "LOCAL_WORLD_SIZE": processes, "MASTER_PORT": port}
    children = []
    for rank in range(processes):
        own = {"RANK": rank, "LOCAL_RANK": rank, "MASTER_ADDR": "localhost"}
        variables = {name: str(value) for name, value in (shared | own).items()}
        children.append(begin([str(word) for word in words], scratch / f"used-{rank}", variables))
    used = []
    for rank, child in enumerate(children):
        _, status, usage = os.wait4(child, 0)
        if status:
            sys.exit(f"moeprune {' '.join(map(str, words))} failed")
        lines = (scratch / f"used-{rank}").read_text().splitlines()
        facts = dict(line.split(":", 1) for line in lines)
        peak = int(facts["VmHWM"].split()[0]) << 10
        used.append(Used(usage.ru_utime + usage.ru_stime, peak, int(facts["rchar"])))
    return used


def begin(words: list[str], used: Path, variables: Mapping[str, str]) -> int:
    """Fork a child that runs a command and writes what it has used; its process id."""
    sys.stdout.flush()
    if child := os.fork():
        return child
    code = 1
    try:
        os.environ.update(variables)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        sys.argv = ["moeprune", *words]
        moeprune()
        code = 0
    except SystemExit as ended:
        code = int(ended.code or 0)
    except BaseException:  # noqa: BLE001
        traceback.print_exc()
    finally:
        own = Path("/proc/self")
        used.write_text((own / "io").read_text() + (own / "status").read_text())
        os._exit(code)


@contextmanager
def company(count: int) -> Iterator[None]:
    """Inside, so many other processes multiply matrices."""
    parent, children, matrix = os.getpid(), [], torch.rand(1024, 1024)
    for _ in range(count):
        if not (child := os.fork()):
            while os.getppid() == parent:
                torch.mm(matrix, matrix)
            os._exit(0)
        children.append(child)
    try:
        yield
    finally:
        for child in children:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)


def results(stats: Path, model: MoEModel) -> list[object]:
    """Hashes of the statistics in a folder, and all that was measured of plans and layers."""
    curves = SensitivityStore([stats])
    values = []
    for points in map(curves.points, curves.records(model.identity)):
        samples = points.samples()
        values += [
            (point, points.values(point.removed, samples).tolist())
            for point in points.on_all(samples)
        ]
    runs = [dict(run.manifest.files) for run in StatsStore(stats).runs()]
    records = EvaluationStore([stats]).records(model.identity)
    return [runs, [(record.plan_digest, dict(record.metrics)) for record in records], values]


def write_rows(file: Path, rows: int, length: int, vocabulary: int) -> Path:
    """A corpus of random ids."""
    ids = np.random.default_rng(rows).integers(3, vocabulary, (rows, length)).tolist()
    file.write_text("".join(json.dumps({"input_ids": row}) + "\n" for row in ids))
    return file


def commands(given: argparse.Namespace, model: MoEModel, stats: Path) -> dict[str, list[object]]:
    """Calibration, a plan of half the experts, its evaluation beside the original, and curves."""
    path, scratch, length = model.checkpoint.path, stats.parent, given.seq_len
    vocabulary = int(model.config["vocab_size"])
    text = write_rows(scratch / "text.jsonl", given.tokens // length, length, vocabulary)
    held_out = write_rows(scratch / "samples.jsonl", given.samples, length, vocabulary)
    common = ("--seq-len", length, "--batch-size", BATCH, "--device", "cpu", "--stats-dir", stats)
    plan = scratch / "plan.json"
    half = ("--criterion", "reap", "--sparsity", "50%", "-o", plan, "--stats-dir", stats)
    counted = (
        "--samples",
        given.samples,
        "--count",
        "all",
        "-o",
        scratch / f"of-{stats.name}.json",
    )
    words = ("sensitivity", path, "--criterion", "reap", "--corpus", held_out)
    sampled = ("--samples", given.samples, "--count", "all")
    return {
        "calibrate": ["calibrate", path, "--corpus", text, "--tokens", given.tokens, *common],
        "plan": ["plan", path, *half],
        "evaluate": ["evaluate", path, "--plan", plan, "--corpus", held_out, *counted, *common],
        "sensitivity": [*words, "--levels", given.levels, *sampled, *common],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("folder", type=Path, help="a scratch folder")
    parser.add_argument("--model", default="OLMoE-1B-7B-0924", choices=sorted(LAYOUTS))
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--experts", type=int, help="of a layer, instead of the model's own")
    parser.add_argument("--tokens", type=int, default=4096, help="of the calibration")
    parser.add_argument("--samples", type=int, default=8, help="of the evaluation")
    parser.add_argument("--levels", type=int, default=2, help="of the curves of each layer")
    parser.add_argument("--seq-len", type=int, default=512, help="tokens of a sequence")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--company", action="store_true", help="the one runs beside others")
    given = parser.parse_args()
    torch.set_num_threads(1)
    scratch = given.folder.resolve()
    scratch.mkdir(parents=True, exist_ok=True)
    model = prepared(scratch, given.model, given.layers, given.tokens, given.experts)
    print(f"{given.model}, {given.layers} layers, {model.checkpoint.nbytes / 2**30:.2f} GiB\n")
    print(
        "| command | processes | CPU s of each | speed-up | GiB read by each | peak MiB of each |"
    )
    print("|---|---|---|---|---|---|", flush=True)
    kept: list[list[object]] = []
    alone: dict[str, float] = {}
    for processes in (1, given.processes):
        stats = scratch / f"stats-{processes}"
        shutil.rmtree(stats, ignore_errors=True)
        for name, words in commands(given, model, stats).items():
            with company(given.processes - 1 if given.company and processes == 1 else 0):
                used = run(scratch, words, 1 if name == "plan" else processes)
            if name == "plan":
                continue
            busiest = max(process.cpu for process in used)
            speed_up = alone.setdefault(name, busiest) / busiest
            cells = (
                f"{name} | {processes}",
                ", ".join(f"{process.cpu:.1f}" for process in used),
                f"{speed_up:.2f}",
                ", ".join(f"{process.read / 2**30:.2f}" for process in used),
                ", ".join(f"{process.peak / 2**20:,.0f}" for process in used),
            )
            print(f"| {' | '.join(cells)} |", flush=True)
        kept.append(results(stats, model))
    if kept[0] != kept[1]:
        sys.exit("The statistics, the losses or the curves differ.")
    print("\nStatistics, losses and curves are equal, bit for bit.")


if __name__ == "__main__":
    main()
