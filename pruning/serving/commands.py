"""The commands that serve an export, of each engine: one table for card, page and `export`.

`docs/guide/serving.md` shows the same.
"""

import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pruning.serving.engines import Reads, Verdict


@dataclass(frozen=True, slots=True)
class Serving:
    """How an engine serves a checkpoint."""

    # In order; the last one serves. `{out}`: the folder; `{copy}`: one beside it, in float32;
    # `{outtype}`: see `outtype_of`; `{options}`: what this checkpoint needs besides.
    commands: tuple[str, ...]
    port: int


def serve_gguf(path: Path) -> str:
    """The command that serves a GGUF file."""
    return f"llama-server --model {shlex.quote(str(path))} --port 8080"


CONVERTER: Final = "convert_hf_to_gguf.py"  # of llama.cpp's source
LLAMA_CPP: Final = "llama.cpp"
SERVING: Final[Mapping[str, Serving]] = {
    "vLLM": Serving(
        ("python -m vllm.entrypoints.openai.api_server --model {out} --port 8000{options}",), 8000
    ),
    # Q8_0 has blocks of 32 weights; smaller types need rows of 256, which narrow experts lack.
    LLAMA_CPP: Serving(
        (
            f"python {CONVERTER} {{out}} --outfile model.gguf --outtype {{outtype}}{{options}}",
            "llama-quantize model.gguf model-Q8_0.gguf Q8_0",
            serve_gguf(Path("model-Q8_0.gguf")),
        ),
        8080,
    ),
    # Without a GPU it multiplies experts in float32 only.
    "MLX": Serving(
        (
            "mlx_lm.convert --hf-path {out} --mlx-path {copy} --dtype float32",
            "mlx_lm.server --model {copy} --port 8080",
        ),
        8080,
    ),
    "SGLang": Serving(
        ("python -m sglang.launch_server --model-path {out} --port 30000",),
        30000,
    ),
}
REQUEST: Final = (
    'curl localhost:{port}/v1/completions -H "Content-Type: application/json" '
    '-d \'{{"prompt": "def add(a, b):", "max_tokens": 16, "temperature": 0}}\''
)
_OUTTYPES: Final = {"F16": "f16", "F32": "f32"}


def outtype_of(dtype: str) -> str:
    """llama.cpp's type that holds weights of a dtype of safetensors; bf16 for FP8 and others."""
    return _OUTTYPES.get(dtype, "bf16")


def serve_commands(
    verdicts: Iterable[Verdict], path: str, dtype: str, *, tried_only: bool = False
) -> list[str]:
    """Commands that serve the folder, engine by engine, then those that ask a server.

    Not of engines that fail or compute wrong results, and with `tried_only` of no others than were
    tried. `dtype` is that of most weights, see `outtype_of`.
    """
    names = {"out": shlex.quote(path), "copy": shlex.quote(f"{path}-float32")}
    lines: list[str] = []
    requests: dict[str, None] = {}  # engines that listen on the same port are asked alike
    for verdict in verdicts:
        is_served = verdict.reads not in (Reads.FAILS, Reads.WRONG)
        if (
            verdict.engine not in SERVING
            or not is_served
            or (tried_only and verdict.reads is not Reads.TRIED)
        ):
            continue
        serving = SERVING[verdict.engine]
        options = f" {verdict.options}" if verdict.options else ""
        note = f"  # {verdict.engine}, {verdict.reads}"
        note += f"; {verdict.condition.split()[0]} for a CPU only" if verdict.condition else ""
        first, *others = (
            line.format(**names, options=options, outtype=outtype_of(dtype))
            for line in serving.commands
        )
        lines += [first + note, *others]
        requests[REQUEST.format(port=serving.port)] = None
    return [*lines, *requests]
