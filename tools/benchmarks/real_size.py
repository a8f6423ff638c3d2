"""The whole path on a checkpoint of a published model's shapes: time, memory and bytes by command.

Writes random bfloat16 weights under the true names and shapes, shard by shard, into a scratch
folder, and runs each command in a process of its own. Layers are as many as asked for: 20 of
Qwen3-30B-A3B take 24 GiB. A second run takes the checkpoint that is there.

`PYTHONPATH=.:tests python -m tools.benchmarks.real_size FOLDER [--model Qwen3-30B-A3B]
[--layers 20] [--tokens 8192] [--limit-gib 20] [--verbose]`

For each command the table has the processor seconds, the seconds by the clock, and what the
command itself expected of these; the most memory that it held, Python included; and the bytes that
it read, beside those that it cannot do without. The last column is the share of moments, ten a
second, after the first tenth of the time, at which the time left was within a quarter of the truth,
by the clock. No rate of the machine is known before. The page cache is warm where it can hold the
model.
"""

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from transformers import AutoConfig

from analysis.families.base import SlotKind
from analysis.model.moe_model import OUTPUT_HEAD, MoEModel
from analysis.model.opening import load_model_index
from layouts.published import LAYOUTS
from tools.benchmarks.frames import Judgement, Recording
from tools.benchmarks.synthetic import write_model

SEQ_LEN, BATCH = 512, 2
# A process says at its end what it has read and held; system calls count, mapped pages do not.
CHILD = """
import atexit, os, sys
from pathlib import Path

def say():
    lines = Path("/proc/self/io").read_text() + Path("/proc/self/status").read_text()
    Path(os.environ["USED"]).write_text(lines)

atexit.register(say)
from tools.benchmarks.progress import child
child([os.environ["STEPS"], "{}"], sys.argv[1:], heavy=())
"""


@dataclass(frozen=True)
class Used:
    """What a command took."""

    cpu: float  # seconds of all its threads
    seconds: float  # by the clock
    peak: int  # bytes of memory
    read: int  # bytes
    printed: str
    judged: Judgement | None  # its time left


@dataclass(frozen=True)
class Step:
    """A command, and the bytes of weights that it cannot do without."""

    name: str
    words: Sequence[object]
    needed: Callable[[], int]
    has_estimate: bool = False  # whether `--dry-run` says seconds and memory


def run(scratch: Path, words: Sequence[object], limit: int | None) -> Used:
    """Run a command of the product, in so many bytes of address space."""
    used, file, started = scratch / "used", scratch / "steps.json", time.perf_counter()
    file.unlink(missing_ok=True)
    process = subprocess.Popen(
        [sys.executable, "-c", CHILD, *map(str, words)],
        env={
            **os.environ,
            "USED": str(used),
            "STEPS": str(file),
            "XDG_CACHE_HOME": str(scratch / "cache"),
            "PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path)),
        },
        cwd=scratch,
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: limit and resource.setrlimit(resource.RLIMIT_AS, (limit, limit)),
    )
    assert process.stdout
    printed = process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        sys.exit(f"moeprune {' '.join(map(str, words))} failed")
    facts = dict(line.split(":", 1) for line in used.read_text().splitlines())
    judged = Recording.from_file(file).judged("wall") if file.is_file() else None
    return Used(
        usage.ru_utime + usage.ru_stime,
        time.perf_counter() - started,
        int(facts["VmHWM"].split()[0]) << 10,
        int(facts["rchar"]),
        printed,
        judged,
    )


def steps(scratch: Path, model: MoEModel, tokens: int) -> Iterator[Step]:
    """The path of `docs/guide/large-models.md`, from inspection to a verified export."""
    path, total = model.checkpoint.path, model.checkpoint.nbytes
    experts = sum(
        item.entry.nbytes
        for items in model.located.values()
        for item in items
        if item.slot.kind is not SlotKind.ROUTER
    )
    head = sum(
        entry.nbytes for name, entry in model.checkpoint.tensors.items() if OUTPUT_HEAD in name
    )
    stats = ("--stats-dir", scratch / "stats")
    text = ("--corpus", scratch / "read.jsonl", "--seq-len", SEQ_LEN)
    held_out = ("--corpus", scratch / "held-out.jsonl", "--seq-len", SEQ_LEN, "--count", "all")
    by_layers = ("--batch-size", BATCH, "--device", "cpu")
    plans = [scratch / f"{name}.json" for name in ("plan", "aimer")]

    yield Step("inspect", ("inspect", path), lambda: 0)
    counted = ("plan", path, "--config-only", "--shrink", "40%")
    yield Step("plan --config-only", counted, lambda: 0)
    yield Step("weights", ("weights", path, *stats), lambda: experts, has_estimate=True)
    words = ("calibrate", path, *text, "--tokens", tokens, *by_layers, "--stream-layers", *stats)
    yield Step("calibrate --stream-layers", words, lambda: total - head, has_estimate=True)
    for plan, criterion in zip(plans, ("reap", "aimer"), strict=True):
        words = ("plan", path, "--criterion", criterion, "--sparsity", "50%", "-o", plan, *stats)
        yield Step(f"plan by {criterion}", words, lambda: 0)
    both = [word for plan in plans for word in ("--plan", plan)]
    words = ("evaluate", path, *both, *held_out, "--samples", 2, *by_layers, *stats)
    name = "evaluate, 2 plans and the original"
    yield Step(name, (*words, "--stream-layers"), lambda: total, has_estimate=True)
    yield Step("fit", ("fit", path, "--target-size", f"{0.7 * total / 2**30}", *stats), lambda: 0)
    fitted = max(tokens // 4, 2 * SEQ_LEN)  # it judges on a sequence on which it does not fit
    words = ("repair", path, "--plan", plans[0], *text, "--tokens", fitted, *by_layers, *stats)
    yield Step("repair", words, lambda: total - head, has_estimate=True)
    for name, plan in (("pruned", plans[0]), ("repaired", scratch / "repaired.json")):
        out = scratch / name
        words = ("export", path, out, "--plan", plan, "--no-verify", *stats)
        yield Step(f"export, {name}", words, partial(_bytes_in, out))
        words = ("verify", out, "--level", "bytes")
        yield Step("verify --level bytes", words, partial(_bytes_in, out))
        # Of the source as many bytes as of the export.
        words = ("verify", out, "--source", path, "--level", "bytes", *stats)
        yield Step("verify --source", words, partial(_bytes_in, out, 2), has_estimate=True)
        if name == "pruned":
            words = ("verify", out, "--source", path, "--stream-layers", *stats)
            # The same; then the export in its own dtype; then both models in float32.
            needed = partial(_bytes_of, path, *[out] * 4)
            step = "verify --source --stream-layers, to logits"
            yield Step(step, words, needed, has_estimate=True)
        shutil.rmtree(out)  # a disk need not hold both


def _bytes_of(*folders: Path) -> int:
    return sum(map(_bytes_in, folders))


def _bytes_in(folder: Path, times: int = 1) -> int:
    return times * sum(file.stat().st_size for file in folder.glob("*.safetensors"))


def expected(scratch: Path, step: Step) -> tuple[str, str]:
    """The seconds and MiB that the command expects to take."""
    if not step.has_estimate:
        return "-", "-"
    printed = run(scratch, (*step.words, "--dry-run", "--json"), None).printed
    result = json.loads(printed)["result"]
    return f"{result['seconds']:.0f}", f"{result['memory_bytes'] / 2**20:,.0f}"


def corpora(scratch: Path, tokens: int, vocabulary: int) -> None:
    """A text to calibrate on and one to evaluate on, of random ids."""
    random = np.random.default_rng(0)
    for name, count in (("read", tokens // SEQ_LEN), ("held-out", 2)):
        rows = random.integers(3, vocabulary, (count, SEQ_LEN)).tolist()
        lines = (json.dumps({"input_ids": row}) + "\n" for row in rows)
        (scratch / f"{name}.jsonl").write_text("".join(lines))


def prepared(
    scratch: Path, name: str, layers: int, tokens: int, experts: int | None = None
) -> MoEModel:
    """The checkpoint in the scratch folder, and nothing else there from an earlier run.

    Fewer `experts` a layer take less memory, and as long to run.
    """
    folder = scratch / f"{name}-{layers}{f'x{experts}' if experts else ''}"
    if not (folder / "model.safetensors.index.json").is_file():
        raw = {**LAYOUTS[name].config, "num_hidden_layers": layers}
        counts = ("num_experts", "num_local_experts", "n_routed_experts")
        raw |= {key: experts for key in counts if experts and key in raw}
        write_model(folder, AutoConfig.for_model(**raw))
    for old in ("stats", "cache", "pruned", "repaired"):
        shutil.rmtree(scratch / old, ignore_errors=True)
    for file in scratch.glob("*.json"):
        file.unlink()
    model = load_model_index(str(folder))
    corpora(scratch, tokens, int(model.config["vocab_size"]))
    return model


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("folder", type=Path, help="a scratch folder")
    parser.add_argument("--model", default="Qwen3-30B-A3B", choices=sorted(LAYOUTS))
    parser.add_argument("--layers", type=int, default=20)
    parser.add_argument("--tokens", type=int, default=8192, help="of the calibration")
    parser.add_argument("--verbose", action="store_true", help="list moments that were wrong")
    parser.add_argument("--limit-gib", type=float, help="of address space, for each command")
    given = parser.parse_args()
    scratch = given.folder.resolve()
    scratch.mkdir(parents=True, exist_ok=True)
    model = prepared(scratch, given.model, given.layers, given.tokens)
    gib = model.checkpoint.nbytes / 2**30
    print(f"{given.model}, {given.layers} layers, {gib:.2f} GiB, {os.cpu_count()} cores\n")
    print("| step | CPU s | s | expected s | peak MiB | expected MiB | GiB read / needed | right |")
    print("|---|---|---|---|---|---|---|---|")
    limit = int(given.limit_gib * 2**30) if given.limit_gib else None
    for step in steps(scratch, model, given.tokens):
        seconds, memory = expected(scratch, step)
        used, needed = run(scratch, step.words, limit), step.needed()
        own = f"{used.read / 2**30:.2f}" if used.read > needed / 2 else "mapped"
        read = f"{own} / {needed / 2**30:.2f}" if needed else "-"
        took = (f"{used.cpu:.1f}", f"{used.seconds:.1f}", seconds, f"{used.peak / 2**20:,.0f}")
        right = used.judged.share if used.judged else "-"
        print(f"| {' | '.join((step.name, *took, memory, read, right))} |", flush=True)
        if given.verbose and (one := used.judged):
            lines = [one.rates_in_words, *one.wrong[:: max(1, len(one.wrong) // 20)]]
            print("\n".join(f"  {line}" for line in lines), flush=True)


if __name__ == "__main__":
    main()
