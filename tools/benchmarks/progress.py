"""Whether the time left is right: frames of real commands, beside how long they took from there.

Writes random models and corpora into a scratch folder: OLMoE's kind (12 layers of 16 experts, 0.4
GiB), GLM-4.5's with a prediction head (8 layers of 16 experts, 0.3 GiB), and for exports one of 4.4
GiB; then runs commands, each in a process of its own with one thread, and keeps their steps in the
scratch folder; `--again` judges those that are there, with the code as it is. A frame is right if
the time left is within a quarter of the truth; those of the first tenth do not count. There are ten
a second, by wall time and by the processor time of the process. The last column says how well
`RATES` in analysis/progress.py fit: equal numbers are right. They are kept in the scratch folder,
and known to the commands that follow, as those of a user's machine are; with `--unknown` those of a
probe are known at most, and those of the part that is resumed. In brackets: the rate that was
known.

`python -m tools.benchmarks.progress FOLDER [NAMES]`; --verbose lists wrong frames.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path

import numpy as np

from analysis.stats.rates import rates_file
from tools.benchmarks.frames import CLOCKS, Recording, record

LAYERS, EXPERTS, HIDDEN, WIDTH, VOCAB = 12, 16, 512, 512, 32_000
SEQ_LEN, ROWS = 128, 128
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
ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


def make(scratch: Path, name: str) -> None:
    """The model of a command, and two corpora."""
    from transformers import Glm4MoeConfig

    from tools.benchmarks.synthetic import olmoe_config, write_model

    for seed, corpus in enumerate(("rows", "held")):
        rows = np.random.default_rng(seed).integers(3, VOCAB, (ROWS, SEQ_LEN)).tolist()
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
        tokens = ["--tokens", str(ROWS * SEQ_LEN)]
        calibrate = ["calibrate", model, "--corpus", rows, *tokens, *running]
        evaluate = ["evaluate", model, "--corpus", held, *running, "--samples", "24", *four]
        evaluate += ["--count", "all", "-o", str(stats / "result.json")]
        curves = ["sensitivity", model, "--criterion", "aimer", "--corpus", held, *running]
        curves += ["--samples", "8", "--levels", "3", "--count", "all"]
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
    known["repair"] = [*repair, "--tokens", "98304", "-o", str(stats / "repaired.json")]
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
    line = [sys.executable, "-m", __spec__.name, "--child", *options, "--", *words]
    done = subprocess.run(line, env={**os.environ, **ONE_THREAD}, capture_output=True, text=True)
    if done.returncode not in (0, 130):
        sys.exit(f"{' '.join(words)}\n{done.stdout}{done.stderr}")


def child(options: list[str], words: list[str], *, heavy: Sequence[str] = _HEAVY) -> None:
    """In the child: run a command, and keep its steps."""
    if not options:
        from app import cli

        sys.argv = ["moeprune", *words]
        return cli.main()
    for module in heavy:  # start-up is the same for a command of hours: it is over before it counts
        import_module(module)
    file, usual, *stop = options
    return record(Path(file), json.loads(usual), words, stops_at=0.5 if stop else 2.0)


def main() -> None:
    options = [word for word in sys.argv[1:] if word.startswith("--")]
    folder, *names = [word for word in sys.argv[1:] if not word.startswith("--")]
    scratch = Path(folder).absolute()
    (scratch / "steps").mkdir(parents=True, exist_ok=True)
    stats, rates = scratch / "stats", scratch / "rates.json"
    os.environ["XDG_CACHE_HOME"] = str(scratch / "cache")  # not the user's own rates
    clocks = " ".join(f"{name:>16}" for name in CLOCKS)
    print(f"{'command':<42} {clocks}  rises  processor seconds a unit of cost, by kind")
    for name, words in commands(scratch, stats).items():
        file = scratch / "steps" / f"{name}.json"
        if (names and name not in names) or ("--again" in options and not file.is_file()):
            continue
        if "--again" not in options:
            make(scratch, name)
            prepare(scratch, stats, name)
            rates_file().unlink(missing_ok=True)
            known = rates.read_text() if rates.is_file() and "--unknown" not in options else "{}"
            if name.endswith("resumed"):
                run(words, str(file), known, "--stop")
            run(words, str(file), known)
        kinds = report(name, Recording.from_file(file), verbose="--verbose" in options)
        if "--again" not in options:
            rates.write_text(json.dumps(json.loads(known) | kinds))


def report(name: str, recording: Recording, *, verbose: bool) -> Mapping[str, float]:
    """Print the row of a command; its rates by kind of work, by processor time."""
    by_clock = {clock: recording.judged(clock) for clock in CLOCKS}
    columns = " ".join(f"{one.seconds:8.1f} s {one.share:>5}" for one in by_clock.values())
    rising = "yes" if all(one.rises for one in by_clock.values()) else "NO"
    rates = by_clock["processor"]
    print(f"{name:<42} {columns}  {rising:<5}  {rates.rates_in_words}", flush=True)
    for clock, one in by_clock.items() if verbose else ():
        lines = one.wrong[:: max(1, len(one.wrong) // 12)]
        print("\n".join(f"  {clock} {line}" for line in lines), flush=True)
    return rates.rates


if __name__ == "__main__":
    if sys.argv[1] == "--child":
        cut = sys.argv.index("--")
        child(sys.argv[2:cut], sys.argv[cut + 1 :])
    else:
        main()
