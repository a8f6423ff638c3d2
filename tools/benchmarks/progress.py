"""Whether the time left is right: frames of real commands, beside how long they took from there.

Writes random models and corpora into a scratch folder: OLMoE's kind (12 layers of 16 experts, 0.4
GiB), GLM-4.5's with a prediction head (8 layers of 16 experts, 0.3 GiB), and for exports one of 4.4
GiB; then runs commands, each in a process of its own with one thread, and looks at their progress
ten times a second. Each is judged by two clocks: wall time, and the processor time of the process,
as others may use the machine. A frame is right if the time left is within a quarter of the truth;
those of the first tenth do not count. The last column says how well `RATES` in analysis/progress.py
fit: equal numbers are right. They are kept in the scratch folder, and known to the commands that
follow, as those of a user's machine are; with `--unknown` those of a probe are known at most. In
brackets: the rate that was known.
Arguments: scratch folder, then names of commands (all); --verbose lists wrong frames.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from pathlib import Path

import numpy as np

from analysis.pace import Pace
from analysis.progress import Progress
from analysis.stats.rates import known_rates, rates_file

LAYERS, EXPERTS, HIDDEN, WIDTH, VOCAB = 12, 16, 512, 512, 32_000
SEQ_LEN, TOKENS = 128, 4096
_HEAVY = (
    "transformers.models.olmoe.modeling_olmoe",
    "transformers.models.glm4_moe.modeling_glm4_moe",
    "analysis.calibration.run",
    "analysis.calibration.heads",
    "pruning.repair.run",
    "pruning.search.sitting",
    "pruning.surgery.forward_checks",
    "pruning.surgery.streamed_run",
)
PERIOD, WITHIN, FIRST = 0.1, 0.25, 0.1
ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
CLOCKS = {"wall": time.perf_counter, "processor": time.process_time}


def make(scratch: Path, name: str) -> None:
    """The model of a command, and two corpora."""
    from synthetic import olmoe_config, write_model
    from transformers import Glm4MoeConfig

    for seed, corpus in enumerate(("rows", "held")):
        rows = np.random.default_rng(seed).integers(3, VOCAB, (64, SEQ_LEN)).tolist()
        text = "".join(json.dumps({"input_ids": row}) + "\n" for row in rows)
        (scratch / f"{corpus}.jsonl").write_text(text)
    folder = scratch / model_of(name)
    if (folder / "model.safetensors.index.json").is_file():
        return
    heads = {"num_attention_heads": 8, "num_key_value_heads": 8, "vocab_size": VOCAB}
    more = {"tie_word_embeddings": False}
    if folder.name == "model":
        more["architectures"] = ["OlmoeForCausalLM"]
        write_model(folder, olmoe_config(LAYERS, EXPERTS, (HIDDEN, WIDTH), **heads, **more))
        return
    is_large = folder.name == "large"
    hidden, width, layers = (2048, 1024, 5) if is_large else (HIDDEN, WIDTH, 8)
    more |= {"architectures": ["Glm4MoeForCausalLM"], "num_nextn_predict_layers": 1}
    more |= dict.fromkeys(("eos_token_id", "pad_token_id", "bos_token_id"))
    sizes = {"hidden_size": hidden, "moe_intermediate_size": width, "num_hidden_layers": layers}
    sizes |= {"intermediate_size": 4 * hidden, "head_dim": hidden // 8}
    sizes["n_routed_experts"] = 64 if is_large else EXPERTS
    write_model(folder, Glm4MoeConfig(**sizes, **heads, **more), has_head=True)


def model_of(name: str) -> str:
    """The folder of the model that a command runs."""
    if name.startswith(("export", "verify")):
        return "large"
    return "headed" if "with a head" in name else "model"


def commands(scratch: Path, stats: Path) -> dict[str, list[str]]:
    """The words of each command, by name."""
    rows, held = (str(scratch / name) for name in ("rows.jsonl", "held.jsonl"))
    machine = ["--device", "cpu", "--stats-dir", str(stats)]
    running = [*machine, "--dtype", "float32", "--batch-size", "2", "--seq-len", str(SEQ_LEN)]
    four = [word for n in range(4) for word in ("--plan", str(stats / f"plan-{n}.json"))]
    out, large = str(stats / "export"), str(scratch / "large")
    export = ["export", large, out, "--plan", str(stats / "plan-0.json"), "--stats-dir", str(stats)]
    known: dict[str, list[str]] = {}
    for where, head in ("model", ""), ("headed", ", with a head"):
        model, groups = str(scratch / where), ["--group", "heads"] if head else []
        calibrate = ["calibrate", model, "--corpus", rows, "--tokens", str(TOKENS), *running]
        evaluate = ["evaluate", model, "--corpus", held, *running, "--samples", "8", *four]
        evaluate += ["--count", "all", "-o", str(stats / "result.json")]
        curves = ["sensitivity", model, "--criterion", "aimer", "--corpus", held, *running]
        curves += ["--samples", "4", "--levels", "3", "--count", "all"]
        search = ["search", str(stats / "recipe.yaml"), *machine, "--batch-size", "2"]
        for layers, by in [("", []), (" by layers", ["--stream-layers"])]:
            known |= {
                f"calibrate{layers}{head}": [*calibrate, *groups, *by],
                f"evaluate 4 plans{layers}{head}": [*evaluate, *by],
                f"sensitivity{layers}{head}": [*curves, *by],
                f"search{layers}{head}": [*search, *by],
            }
    # Of a random model most layers gain nothing by a fit, which is then left out.
    repair = ["repair", "demo", "--plan", str(stats / "plan-demo.json"), *machine]
    known["repair"] = [*repair, "--tokens", "24576", "-o", str(stats / "repaired.json")]
    # Nor do the windows of a round promise a better plan of it.
    plans = ["--sparsity", "25%", "--sparsity", "50%", "--refine", "1", "--levels", "4"]
    curves = ["sensitivity", "demo", "--criterion", "ean", "--calibrated-on", "demo-code", *machine]
    curves += ["--corpus", "demo-code", "--corpus", "demo-math", "--samples", "4", *plans]
    known["sensitivity, 2 corpora, 2 plans"] = curves
    of_random = ["sensitivity", str(scratch / "model"), "--criterion", "aimer", *running, *plans]
    of_random += ["--corpus", rows, "--corpus", held, "--samples", "4", "--count", "all"]
    known["sensitivity, 2 corpora, 2 plans of a random model"] = of_random
    both = ["--plan", str(stats / "plan-demo.json"), "--plan", str(stats / "plan-more.json")]
    both += ["--corpus", "demo-math", "--samples", "32", "-o", str(stats / "result.json")]
    known["evaluate 2 plans and their repairs"] = ["evaluate", "demo", *machine, *both, "--repair"]
    swept = ["--criterion", "ean", "--sparsity", "50%", "--sparsity", "62.5%", "--repair"]
    swept += ["--calibrated-on", "demo-code", "--corpus", "demo-math", "--samples", "32"]
    swept += ["-o", str(stats / "sweep.csv"), "--force"]
    known["sweep 2 sizes and their repairs"] = ["sweep", "demo", *machine, *swept]
    known |= {f"{name}, resumed": known[name] for name in known}
    verify = ["verify", out, "--source", large]
    return known | {
        "export, with a head": [*export, "--mtp", "prune"],
        "export, its source hashed, with a head": [*export, "--hash-source", "--mtp", "prune"],
        "verify bytes, with a head": [*verify, "--level", "bytes"],
        "verify by layers, with a head": [*verify, "--stream-layers"],
    }


RECIPE = """
model: {model}
corpora: [{rows}]
tokens: 1024
seq_len: 128
dtype: float32
criterion: frequency
budget: {{sparsity: 25%}}
search: {{corpus: {held}, samples: 4, population: 8, generations: 6}}
"""


def prepare(scratch: Path, stats: Path, name: str) -> None:
    """What a command reads."""
    shutil.rmtree(stats, ignore_errors=True)
    stats.mkdir(parents=True)
    paths = {key: scratch / f"{key}.jsonl" for key in ("rows", "held")}
    model = scratch / model_of(name)
    (stats / "recipe.yaml").write_text(RECIPE.format(model=model, **paths))
    if "repair" in name:
        for file, sparsity in ("demo", "50%"), ("more", "62.5%"):
            words = ["plan", "demo", "--criterion", "ean", "--sparsity", sparsity]
            words += ["--calibrated-on", "demo-code", "-o", str(stats / f"plan-{file}.json")]
            run(words)
    elif name.startswith(("evaluate", "export", "verify")):
        for seed in range(4):
            words = ["plan", str(model), "--criterion", f"random:{seed}"]
            words += ["--sparsity", "50%", "-o", str(stats / f"plan-{seed}.json")]
            run([*words, "--stats-dir", str(stats)])
    if name.startswith("verify"):
        run(commands(scratch, stats)["export, with a head"])


def run(words: list[str], *options: str) -> None:
    """Run a command of the product in a process of its own."""
    line = [sys.executable, __file__, "--child", *options, "--", *words]
    done = subprocess.run(line, env={**os.environ, **ONE_THREAD}, capture_output=True, text=True)
    if done.returncode not in (0, 130):
        sys.exit(f"{' '.join(words)}\n{done.stdout}{done.stderr}")


def child(options: list[str], words: list[str], *, heavy: Sequence[str] = _HEAVY) -> None:
    """In the child: run a command, and write its frames for each clock."""
    from app import cli, console

    if options:  # start-up is the same for a command of hours: it is over before the clock starts
        for module in heavy:
            import_module(module)
    tasks: list[dict] = []
    usual = json.loads(options[1]) if options else {}
    recording = partial(recorded, tasks, 0.5 if "--stop" in options else 2.0, usual)
    console._shown = contextmanager(lambda _spoken, _pace: recording())
    sys.argv = ["moeprune", *words]
    try:
        cli.main()
    finally:
        if options and tasks:
            longest = max(tasks, key=lambda task: task["ended"]["wall"])
            Path(options[0]).write_text(json.dumps(longest))


def recorded(
    tasks: list[dict], stops_at: float, usual: dict[str, float]
) -> Iterator[Callable[[Progress], None]]:
    """In place of a bar: frames of a task by each clock; it is stopped at a share."""
    paces = {name: Pace(clock, lambda: usual or known_rates()) for name, clock in CLOCKS.items()}
    frames: dict[str, list[tuple[float, float | None, float | None, str]]]
    frames = {name: [] for name in paces}
    over, phase = threading.Event(), [""]

    def watch() -> None:
        while not over.wait(PERIOD):
            for name, pace in paces.items():
                frames[name].append((pace.seconds, pace.fraction, pace.seconds_left, phase[0]))
            if (paces["wall"].fraction or 0.0) > stops_at and not over.is_set():
                over.set()
                os.kill(os.getpid(), signal.SIGINT)

    def take(step: Progress) -> None:
        phase[0] = step.phase
        for pace in paces.values():
            pace.take(step)

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    yield take
    ended = {name: pace.seconds for name, pace in paces.items()}
    over.set()
    thread.join()
    kinds = {
        clock: {kind: pace._seconds[kind] / costs for kind, costs in pace._costs.items()}
        for clock, pace in paces.items()
    }
    known = dict(paces["wall"]._usual)
    task = {"ended": ended, "frames": frames, "kinds": kinds, "known": known}
    tasks.append(task)


def judged(frames: Sequence, ended: float) -> tuple[float, bool, list[str]]:
    """The share of frames that are right, whether the share rose, and the wrong frames."""
    later = [frame for frame in frames if frame[0] >= FIRST * ended]
    shares = [frame[1] or 0.0 for frame in frames]
    wrong, right = [], 0
    for at, share, left, phase in later:
        truth = ended - at
        if left is not None and abs(left - truth) <= WITHIN * truth:
            right += 1
        else:
            said = "none" if left is None else f"{left:.1f}"
            wrong.append(f"{at:.1f} s: {share or 0:.0%} {said} for {truth:.1f} {phase}")
    return right / max(1, len(later)), shares == sorted(shares), wrong


def main() -> None:
    options = [word for word in sys.argv[1:] if word.startswith("--")]
    folder, *names = [word for word in sys.argv[1:] if not word.startswith("--")]
    scratch = Path(folder).absolute()
    scratch.mkdir(parents=True, exist_ok=True)
    stats, file = scratch / "stats", scratch / "frames.json"
    rates = scratch / "rates.json"
    os.environ["XDG_CACHE_HOME"] = str(scratch / "cache")  # not the user's own rates
    clocks = " ".join(f"{name:>16}" for name in CLOCKS)
    print(f"{'command':<42} {clocks}  rises  processor seconds a unit of cost, by kind")
    for name, words in commands(scratch, stats).items():
        if names and name not in names:
            continue
        make(scratch, name)
        prepare(scratch, stats, name)
        rates_file().unlink(missing_ok=True)
        known = rates.read_text() if rates.is_file() and "--unknown" not in options else "{}"
        if name.endswith("resumed"):
            run(words, str(file), known, "--stop")
        run(words, str(file), known)
        task = json.loads(file.read_text())
        report(name, task, verbose="--verbose" in options)
        rates.write_text(json.dumps(json.loads(known) | task["kinds"]["processor"]))


def rates_of(task: dict, clock: str) -> Iterator[str]:
    """Each kind of work with its rate in this run by a clock, and that known before."""
    for kind, rate in task["kinds"][clock].items():
        before = task["known"].get(kind)
        yield f"{kind} {rate:.2f}" + (f" ({before:.2f})" if before else "")


def report(name: str, task: dict, *, verbose: bool) -> None:
    """Print the row of a command."""
    by_clock = {clock: judged(task["frames"][clock], task["ended"][clock]) for clock in CLOCKS}
    columns = [
        f"{task['ended'][clock]:8.1f} s {right:5.1%}" for clock, (right, _, _) in by_clock.items()
    ]
    kinds = ", ".join(rates_of(task, "processor"))
    rising = "yes" if all(rises for _, rises, _ in by_clock.values()) else "NO"
    print(f"{name:<42} {' '.join(f'{c:>16}' for c in columns)}  {rising:<5}  {kinds}", flush=True)
    for clock, (_, _, wrong) in by_clock.items() if verbose else ():
        lines = wrong[:: max(1, len(wrong) // 12)]
        print("\n".join(f"  {clock} {line}" for line in lines), flush=True)


if __name__ == "__main__":
    if sys.argv[1] == "--child":
        cut = sys.argv.index("--")
        child(sys.argv[2:cut], sys.argv[cut + 1 :])
    else:
        main()
