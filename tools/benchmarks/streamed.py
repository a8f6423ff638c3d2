"""A checkpoint far larger than the memory that a run may use: streamed calibration and evaluation.

Writes 8 GiB of random bfloat16 weights shaped as OLMoE's (64 experts top-8, model width 2,048; but
19 layers of width 512), shard by shard, into a scratch folder; then, each in a process of its own
under `ulimit -v`, calibrates it, and evaluates 16 plans and two in one pass, with the bytes read.
Arguments: scratch folder, tokens (4,096), limit in MiB of the calibration (2,048) and of the
evaluation (3,072).
"""

import contextlib
import json
import resource
import shutil
import sys
import time
from pathlib import Path

import numpy as np
import psutil
from synthetic import olmoe_config, write_model
from transformers import OlmoeConfig

LAYERS, EXPERTS, TOP_K, HIDDEN, WIDTH, VOCAB = 19, 64, 8, 2048, 512, 50_304
SEQ_LEN, BATCH, PLANS = 512, 2, 16


def config() -> OlmoeConfig:
    heads = {"num_attention_heads": 16, "num_key_value_heads": 16, "vocab_size": VOCAB}
    more = {"tie_word_embeddings": False, "architectures": ["OlmoeForCausalLM"]}
    return olmoe_config(LAYERS, EXPERTS, (HIDDEN, WIDTH), **heads, **more)


def corpus(path: Path, tokens: int) -> None:
    rng = np.random.default_rng(0)
    rows = rng.integers(3, VOCAB, (tokens // SEQ_LEN, SEQ_LEN)).tolist()
    path.write_text("".join(json.dumps({"input_ids": row}) + "\n" for row in rows))


def limited(words: list[str], limit_mib: int) -> int:
    """Run a command of the product with so much address space; the bytes that it read."""
    limit = limit_mib << 20
    started = time.perf_counter()
    child = psutil.Popen(
        [sys.executable, "-m", "app.cli", *words],
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (limit, limit)),
    )
    read = 0
    while child.poll() is None:
        with contextlib.suppress(psutil.Error):
            read = child.io_counters().read_chars
        time.sleep(0.05)
    if child.returncode:
        sys.exit(f"{words[0]} failed")
    print(f"  {words[0]}: {time.perf_counter() - started:.0f} s, {read / 2**30:.2f} GiB read")
    return read


def calibrate(scratch: Path, tokens: int, limit_mib: int) -> None:
    words = ["calibrate", str(scratch / "model"), "--corpus", str(scratch / "rows.jsonl")]
    words += ["--tokens", str(tokens), "--seq-len", str(SEQ_LEN), "--batch-size", str(BATCH)]
    words += ["--device", "cpu", "--stats-dir", str(scratch / "stats"), "--stream-layers"]
    limited(words, limit_mib)
    (manifest,) = (scratch / "stats").glob("*/manifest.json")
    made = json.loads(manifest.read_text())["made"]
    print(f"  peak resident memory {made['peak_memory_bytes'] / 2**20:.0f} MiB")
    print(f"  layers: {made['seconds']} s, {made['tokens_per_second']} tokens/s")


def evaluate(scratch: Path, tokens: int, limit_mib: int) -> None:
    """Sixteen random plans in one pass, and one of them by itself."""
    common = ["--stats-dir", str(scratch / "stats")]
    plans = []
    for seed in range(PLANS):
        file = str(scratch / f"plan-{seed}.json")
        words = ["plan", str(scratch / "model"), "--criterion", f"random:{seed}", "-o", file]
        limited([*words, "--sparsity", "50%", *common], 1 << 16)
        plans += ["--plan", file]
    words = ["evaluate", str(scratch / "model"), "--corpus", str(scratch / "rows.jsonl")]
    words += ["--samples", str(tokens // SEQ_LEN), "--seq-len", str(SEQ_LEN), "--count", "all"]
    words += ["--batch-size", str(BATCH), "--device", "cpu", "--stream-layers", *common]
    words += ["-o", str(scratch / "result.json")]
    total = sum(file.stat().st_size for file in (scratch / "model").glob("*.safetensors"))
    for some in (plans, plans[:2]):
        shutil.rmtree(scratch / "stats" / "models", ignore_errors=True)  # what is known
        read = limited([*words, *some], limit_mib)
        print(f"  {len(some) // 2} plans: {read / total:.2f} times the checkpoint's bytes read")


def main() -> None:
    scratch = Path(sys.argv[1])
    tokens = int(sys.argv[2]) if len(sys.argv) > 2 else 4096
    limit = int(sys.argv[3]) if len(sys.argv) > 3 else 2048
    model = scratch / "model"
    if not (model / "model.safetensors.index.json").is_file():
        print(f"{write_model(model, config()) / 2**30:.2f} GiB written to {model}")
    corpus(scratch / "rows.jsonl", tokens)
    shutil.rmtree(scratch / "stats", ignore_errors=True)
    title = f"{LAYERS} layers, {EXPERTS} experts top-{TOP_K}, {tokens} tokens, bfloat16"
    print(f"{title}, address space limited to {limit} MiB")
    calibrate(scratch, tokens, limit)
    evaluate(scratch, tokens, int(sys.argv[4]) if len(sys.argv) > 4 else 3072)


if __name__ == "__main__":
    main()
