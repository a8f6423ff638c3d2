"""The commands that serve an export, of each engine; docs/guide/serving.md shows the same."""

import shlex
from collections.abc import Iterable, Mapping
from typing import Final

from pruning.engines import Reads, Verdict

# Engine -> its commands. `{out}`: the folder; `{copy}`: one beside it, in float32; `{options}`:
# what this checkpoint needs besides.
COMMANDS: Final[Mapping[str, tuple[str, ...]]] = {
    "vLLM": ("python -m vllm.entrypoints.openai.api_server --model {out} --port 8000{options}",),
    "llama.cpp": (
        "python convert_hf_to_gguf.py {out} --outfile model.gguf --outtype bf16{options}",
        "llama-server --model model.gguf --port 8080",
    ),
    # Without a GPU it multiplies experts in float32 only.
    "MLX": (
        "mlx_lm.convert --hf-path {out} --mlx-path {copy} --dtype float32",
        "mlx_lm.server --model {copy} --port 8080",
    ),
    "SGLang": ("python -m sglang.launch_server --model-path {out} --port 30000",),
}


def serve_commands(verdicts: Iterable[Verdict], path: str) -> list[str]:
    """Commands that serve the folder, but of engines that fail or compute wrong results."""
    names = {"out": shlex.quote(path), "copy": shlex.quote(f"{path}-float32")}
    lines = []
    for each in verdicts:
        if each.engine not in COMMANDS or each.reads in (Reads.FAILS, Reads.WRONG):
            continue
        options = f" {each.options}" if each.options else ""
        first, *others = COMMANDS[each.engine]
        note = f"  # {each.engine}, {each.reads}"
        note += f"; {each.condition.split()[0]} for a CPU only" if each.condition else ""
        lines.append(first.format(**names, options=options) + note)
        lines += [line.format(**names) for line in others]
    return lines
