"""The commands that serve an export, of each engine: one table for card, page and `export`.

`docs/guide/serving.md` shows the same.
"""

import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pruning.serving.engines import Reads, Verdict
from pruning.serving.tensor_types import QUANTISER, REST, named_types, tensor_types


@dataclass(frozen=True, slots=True)
class Serving:
    """How an engine serves a checkpoint."""

    # In order; the last one serves. `{out}`: the folder; `{copy}`: one beside it, in float32;
    # `{outtype}`: see `outtype_of`; `{options}`: what this checkpoint needs besides; `{types}`:
    # see `named_types`.
    commands: tuple[str, ...]
    port: int


def serve_gguf(path: Path) -> str:
    """The command that serves a GGUF file."""
    return f"llama-server --model {shlex.quote(str(path))} --port 8080"


_QUANTISED: Final = Path(f"model-{REST}.gguf")
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
            f"{QUANTISER}{{types}} model.gguf {_QUANTISED} {REST}",
            serve_gguf(_QUANTISED),
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


@dataclass(frozen=True, slots=True)
class Served:
    """How an engine serves one checkpoint."""

    verdict: Verdict
    commands: tuple[str, ...]  # in order; the last one serves
    request: str  # asks the server

    @property
    def note(self) -> str:
        """Whether it was tried, and what it needs."""
        needs = self.verdict.condition.split()[0] if self.verdict.condition else ""
        return f"{self.verdict.reads}{f'; {needs} for a CPU only' if needs else ''}"


def served_by(
    verdicts: Iterable[Verdict],
    path: str,
    dtype: str,
    *,
    tried_only: bool = False,
    bits_by_layer: Mapping[int, str] | None = None,
) -> list[Served]:
    """The engines that serve the folder, and how.

    Not those that fail or compute wrong results, and with `tried_only` no others than were tried.
    `dtype` is that of most weights, see `outtype_of`. llama.cpp's file has these bits by layer.
    """
    types = tensor_types(bits_by_layer or {}, outtype_of(dtype))
    names = {"out": shlex.quote(path), "copy": shlex.quote(f"{path}-float32")}
    others = () if tried_only else tuple(set(Reads) - {Reads.FAILS, Reads.WRONG})
    return [
        Served(
            verdict,
            tuple(
                line.format(
                    **names,
                    options=f" {verdict.options}" if verdict.options else "",
                    outtype=outtype_of(dtype),
                    types=named_types(types),
                )
                for line in serving.commands
            ),
            REQUEST.format(port=serving.port),
        )
        for verdict in verdicts
        if (serving := SERVING.get(verdict.engine)) and verdict.reads in (Reads.TRIED, *others)
    ]


def serve_commands(served: Sequence[Served]) -> list[str]:
    """Command lines that serve, engine by engine, then those that ask a server, each once."""
    lines = []
    for engine in served:
        first, *others = engine.commands
        lines += [f"{first}  # {engine.verdict.engine}, {engine.note}", *others]
    return [*lines, *dict.fromkeys(engine.request for engine in served)]
