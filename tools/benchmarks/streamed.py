"""A checkpoint far larger than the memory that the run may use: layer-streamed calibration.

Writes 8 GiB of random bfloat16 weights shaped as OLMoE's (64 experts top-8, model width 2,048; but
19 layers of width 512), shard by shard, into a scratch folder; then calibrates them in a process of
its own under `ulimit -v`. Arguments: scratch folder, tokens (4,096), limit in MiB (2,048).
"""

import json
import resource
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file
from transformers import OlmoeConfig, OlmoeForCausalLM

LAYERS, EXPERTS, TOP_K, HIDDEN, WIDTH, VOCAB = 19, 64, 8, 2048, 512, 50_304
SEQ_LEN, BATCH = 512, 2


def config() -> OlmoeConfig:
    return OlmoeConfig(
        vocab_size=VOCAB,
        hidden_size=HIDDEN,
        intermediate_size=WIDTH,
        num_hidden_layers=LAYERS,
        num_attention_heads=16,
        num_key_value_heads=16,
        num_experts=EXPERTS,
        num_experts_per_tok=TOP_K,
        tie_word_embeddings=False,
    )


def disk_shapes() -> dict[str, list[tuple[str, tuple[int, ...]]]]:
    """Shard -> names and shapes as on the hub: one tensor per expert and projection."""
    with torch.device("meta"):
        model = OlmoeForCausalLM(config())
    shards: dict[str, list[tuple[str, tuple[int, ...]]]] = {}
    for name, tensor in model.state_dict().items():
        layer = name.split(".")[2] if ".layers." in name else "rest"
        found = shards.setdefault(layer, [])
        if not name.endswith(("experts.gate_up_proj", "experts.down_proj")):
            found.append((name, tuple(tensor.shape)))
            continue
        block = name.rpartition(".")[0]
        for expert in range(EXPERTS):
            if name.endswith("down_proj"):
                found.append((f"{block}.{expert}.down_proj.weight", (HIDDEN, WIDTH)))
            else:
                for part in ("gate_proj", "up_proj"):
                    found.append((f"{block}.{expert}.{part}.weight", (WIDTH, HIDDEN)))
    return shards


def write(folder: Path) -> int:
    """The checkpoint; its bytes."""
    folder.mkdir(parents=True, exist_ok=True)
    raw = json.loads(config().to_json_string())
    raw |= {"architectures": ["OlmoeForCausalLM"], "dtype": "bfloat16"}
    (folder / "config.json").write_text(json.dumps(raw))
    weight_map, total = {}, 0
    generator = torch.Generator().manual_seed(0)
    for number, (shard, entries) in enumerate(disk_shapes().items()):
        file = f"model-{number:05d}.safetensors"
        tensors = {}
        for name, shape in entries:
            scale = 1.0 if "norm" in name else 0.02
            noise = torch.randn(shape, generator=generator) if "norm" not in name else None
            tensor = torch.ones(shape) if noise is None else noise * scale
            tensors[name] = tensor.to(torch.bfloat16)
            weight_map[name] = file
        save_file(tensors, folder / file, metadata={"format": "pt"})
        total += sum(tensor.nbytes for tensor in tensors.values())
        print(f"  wrote {file} (layer {shard}), {total / 2**30:.2f} GiB", flush=True)
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return total


def corpus(path: Path, tokens: int) -> None:
    rng = np.random.default_rng(0)
    rows = rng.integers(3, VOCAB, (tokens // SEQ_LEN, SEQ_LEN)).tolist()
    path.write_text("".join(json.dumps({"input_ids": row}) + "\n" for row in rows))


def calibrate(scratch: Path, tokens: int, limit_mib: int) -> None:
    words = [sys.executable, "-m", "app.cli", "calibrate", str(scratch / "model")]
    words += ["--corpus", str(scratch / "rows.jsonl"), "--tokens", str(tokens)]
    words += ["--seq-len", str(SEQ_LEN), "--batch-size", str(BATCH), "--device", "cpu"]
    words += ["--stats-dir", str(scratch / "stats"), "--stream-layers"]
    limit = limit_mib << 20
    started = time.perf_counter()
    subprocess.run(
        words,
        check=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (limit, limit)),
    )
    print(f"  in all {time.perf_counter() - started:.0f} s")
    (manifest,) = (scratch / "stats").glob("*/manifest.json")
    made = json.loads(manifest.read_text())["made"]
    print(f"  peak resident memory {made['peak_memory_bytes'] / 2**20:.0f} MiB")
    print(f"  layers: {made['seconds']} s, {made['tokens_per_second']} tokens/s")


def main() -> None:
    scratch = Path(sys.argv[1])
    tokens = int(sys.argv[2]) if len(sys.argv) > 2 else 4096
    limit = int(sys.argv[3]) if len(sys.argv) > 3 else 2048
    model = scratch / "model"
    if not (model / "model.safetensors.index.json").is_file():
        print(f"{write(model) / 2**30:.2f} GiB written to {model}")
    corpus(scratch / "rows.jsonl", tokens)
    shutil.rmtree(scratch / "stats", ignore_errors=True)
    title = f"{LAYERS} layers, {EXPERTS} experts top-{TOP_K}, {tokens} tokens, bfloat16"
    print(f"{title}, address space limited to {limit} MiB")
    calibrate(scratch, tokens, limit)


if __name__ == "__main__":
    main()
