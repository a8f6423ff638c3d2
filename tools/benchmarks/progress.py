"""Whether the time left is right: frames of real commands, beside how long they took from there.

Writes a random model shaped as OLMoE's (12 layers of 16 experts, 0.4 GiB) and a corpus into a
scratch folder, then runs commands, each in a process of its own with one thread, and looks at their
progress ten times a second. By processor time, as others may use the machine; `--wall` takes wall
time, for commands that wait for a disk. A frame is right if the time left is within a quarter of
the truth; those of the first tenth do not count. The last column says how well `RATES` in
analysis/progress.py fit: equal numbers are right.
Arguments: scratch folder, then names of commands (all).
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path

import numpy as np

LAYERS, EXPERTS, HIDDEN, WIDTH, VOCAB = 12, 16, 512, 512, 32_000
SEQ_LEN, TOKENS = 128, 4096
_HEAVY = (
    "transformers.models.olmoe.modeling_olmoe",
    "analysis.calibration.run",
    "pruning.repair.run",
    "pruning.search.sitting",
    "pruning.surgery.forward_checks",
)
PERIOD, WITHIN, FIRST = 0.1, 0.25, 0.1
ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


def make(scratch: Path) -> None:
    """The model and two corpora."""
    from synthetic import olmoe_config, write_model

    for seed, name in enumerate(("rows", "held")):
        rows = np.random.default_rng(seed).integers(3, VOCAB, (64, SEQ_LEN)).tolist()
        text = "".join(json.dumps({"input_ids": row}) + "\n" for row in rows)
        (scratch / f"{name}.jsonl").write_text(text)
    if (scratch / "model" / "model.safetensors.index.json").is_file():
        return
    heads = {"num_attention_heads": 8, "num_key_value_heads": 8, "vocab_size": VOCAB}
    more = {"tie_word_embeddings": False, "architectures": ["OlmoeForCausalLM"]}
    write_model(scratch / "model", olmoe_config(LAYERS, EXPERTS, (HIDDEN, WIDTH), **heads, **more))


def commands(scratch: Path, stats: Path) -> dict[str, list[str]]:
    """The words of each command, by name; `+` before a word runs it first, unrecorded."""
    model, rows, held = (str(scratch / name) for name in ("model", "rows.jsonl", "held.jsonl"))
    machine = ["--device", "cpu", "--stats-dir", str(stats)]
    running = [*machine, "--dtype", "float32", "--batch-size", "2", "--seq-len", str(SEQ_LEN)]
    calibrate = ["calibrate", model, "--corpus", rows, "--tokens", str(TOKENS), *running]
    plans = [word for n in range(4) for word in ("--plan", str(stats / f"plan-{n}.json"))]
    evaluate = ["evaluate", model, "--corpus", held, *running, "--samples", "8"]
    evaluate += ["--count", "all", "-o", str(stats / "result.json")]
    # Of a random model most layers gain nothing by a fit, which is then left out.
    repair = ["repair", "demo", "--plan", str(stats / "plan-demo.json"), *machine]
    repair += ["--tokens", "24576", "-o", str(stats / "repaired.json")]
    sensitivity = ["sensitivity", model, "--criterion", "aimer", "--corpus", held, *running]
    sensitivity += ["--samples", "4", "--levels", "3"]
    export = ["export", model, str(stats / "export"), "--plan", str(stats / "plan-0.json")]
    export += ["--stats-dir", str(stats)]
    return {
        "calibrate": calibrate,
        "calibrate by layers": [*calibrate, "--stream-layers"],
        "evaluate, 4 plans": [*evaluate, *plans],
        "evaluate, 4 plans, by layers": [*evaluate, *plans, "--stream-layers"],
        "repair": repair,
        "sensitivity": [*sensitivity, "--count", "all"],
        "sensitivity by layers": [*sensitivity, "--count", "all", "--stream-layers"],
        "search": ["search", str(stats / "recipe.yaml"), "--stats-dir", str(stats)],
        "export": [*export, "--hash-source"],
        "verify": ["verify", str(stats / "export"), "--source", model],
    }


RECIPE = """
model: {model}
corpora: [{rows}]
tokens: 1024
seq_len: 128
dtype: float32
criterion: frequency
budget: {{sparsity: 25%}}
search: {{corpus: {held}, samples: 2, population: 8, generations: 4}}
"""


def prepare(scratch: Path, stats: Path, name: str) -> None:
    """What a command reads."""
    shutil.rmtree(stats, ignore_errors=True)
    stats.mkdir(parents=True)
    paths = {key: scratch / f"{key}.jsonl" for key in ("rows", "held")}
    (stats / "recipe.yaml").write_text(RECIPE.format(model=scratch / "model", **paths))
    if name.startswith("repair"):
        words = ["plan", "demo", "--criterion", "ean", "--sparsity", "50%", "--calibrated-on"]
        run([*words, "demo-code", "-o", str(stats / "plan-demo.json")])
    if name.startswith(("evaluate", "export", "verify")):
        for seed in range(4):
            words = ["plan", str(scratch / "model"), "--criterion", f"random:{seed}"]
            words += ["--sparsity", "50%", "-o", str(stats / f"plan-{seed}.json")]
            run([*words, "--stats-dir", str(stats)])
    if name == "verify":
        run(commands(scratch, stats)["export"])


def run(words: list[str], *options: str) -> None:
    """Run a command of the product in a process of its own."""
    line = [sys.executable, __file__, "--child", *options, "--", *words]
    done = subprocess.run(line, env={**os.environ, **ONE_THREAD}, capture_output=True, text=True)
    if done.returncode not in (0, 130):
        sys.exit(f"{' '.join(words)}\n{done.stdout}{done.stderr}")


def child(options: list[str], words: list[str]) -> None:
    """In the child: run a command, and write its frames, each a time, a share and the time left."""
    from app import cli, console

    if options:  # start-up is the same for a command of hours: it is over before the clock starts
        for module in _HEAVY:
            import_module(module)
    file = next((Path(word) for word in options if word.endswith(".json")), None)
    clock = time.perf_counter if "--wall" in options else time.process_time
    stops_at = 0.5 if "--stop" in options else 2.0
    tasks: list[dict[str, object]] = []

    @contextmanager
    def recorded(_spoken: object, pace: "console.Pace") -> Iterator[Callable[[object], None]]:
        pace._clock = clock
        pace._started = pace._counted = clock()
        frames: list[tuple[float, float | None, float | None, str]] = []
        over, phase = threading.Event(), [""]

        def watch() -> None:
            while not over.wait(PERIOD):
                frames.append((clock(), pace.fraction, pace.seconds_left, phase[0]))
                if (pace.fraction or 0.0) > stops_at and not over.is_set():
                    over.set()
                    os.kill(os.getpid(), signal.SIGINT)

        thread = threading.Thread(target=watch, daemon=True)
        started = clock()
        thread.start()
        yield lambda step: phase.__setitem__(0, step.phase)
        over.set()
        thread.join()
        kinds = {kind: pace._seconds[kind] / costs for kind, costs in pace._costs.items()}
        tasks.append({"started": started, "ended": clock(), "frames": frames, "kinds": kinds})

    console._shown = recorded
    sys.argv = ["moeprune", *words]
    try:
        cli.main()
    finally:
        if file and tasks:
            longest = max(tasks, key=lambda task: task["ended"] - task["started"])
            file.write_text(json.dumps(longest))


def judged(task: dict) -> tuple[float, float, bool, list[str]]:
    """Seconds, the share of frames that are right, whether the share rose, and the wrong frames."""
    started, ended = task["started"], task["ended"]
    later = [f for f in task["frames"] if f[0] - started >= FIRST * (ended - started)]
    shares = [f[1] or 0.0 for f in task["frames"]]
    wrong, right = [], 0
    for at, share, left, phase in later:
        truth = ended - at
        if left is not None and abs(left - truth) <= WITHIN * truth:
            right += 1
        else:
            said = "none" if left is None else f"{left:.1f}"
            wrong.append(f"{at - started:.1f} s: {share or 0:.0%} {said} for {truth:.1f} {phase}")
    return ended - started, right / max(1, len(later)), shares == sorted(shares), wrong


def main() -> None:
    options = [word for word in sys.argv[1:] if word.startswith("--")]
    folder, *names = [word for word in sys.argv[1:] if not word.startswith("--")]
    scratch = Path(folder).absolute()
    scratch.mkdir(parents=True, exist_ok=True)
    make(scratch)
    stats, file = scratch / "stats", scratch / "frames.json"
    known = commands(scratch, stats)
    known |= {f"{name}, resumed": known[name] for name in known if not name.startswith(("e", "v"))}
    known["evaluate, 4 plans, by layers, resumed"] = known["evaluate, 4 plans, by layers"]
    print(f"{'command':<40} {'seconds':>8} {'right':>6}  rises  seconds a unit of cost, by kind")
    for name, words in known.items():
        if names and name not in names:
            continue
        prepare(scratch, stats, name)
        if name.endswith("resumed"):
            run(words, str(file), "--stop", *options)
        run(words, str(file), *options)
        task = json.loads(file.read_text())
        seconds, right, rises, wrong = judged(task)
        kinds = ", ".join(f"{kind} {rate:.2f}" for kind, rate in task["kinds"].items())
        rising = "yes" if rises else "NO"
        print(f"{name:<40} {seconds:8.1f} {right:6.1%}  {rising:<5}  {kinds}", flush=True)
        if "--verbose" in options:
            print("\n".join(wrong[:: max(1, len(wrong) // 12)]), flush=True)


if __name__ == "__main__":
    if sys.argv[1] == "--child":
        cut = sys.argv.index("--")
        child(sys.argv[2:cut], sys.argv[cut + 1 :])
    else:
        main()
