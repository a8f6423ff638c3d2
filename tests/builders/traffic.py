"""Answers of a server with routed experts, random but seeded."""

import base64
import io
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from analysis.families.base import MoELayer


def npy(rows: np.ndarray, dtype: str = "u1") -> str:
    """A .npy file in base64, as vLLM writes arrays."""
    file = io.BytesIO()
    np.save(file, rows.astype(dtype))
    return base64.b64encode(file.getvalue()).decode()


def npy_header(shape: tuple[int, ...]) -> bytes:
    """The beginning of a .npy file of bytes, which may claim anything."""
    file = io.BytesIO()
    claimed = {"shape": shape, "fortran_order": False, "descr": "|u1"}
    np.lib.format.write_array_header_1_0(file, claimed)
    return file.getvalue()


def random_rows(tokens: int, layers: Sequence[MoELayer], seed: int = 0) -> np.ndarray:
    """(tokens, decoder layers, top-k); zeros in dense layers. Low ids come more often."""
    random = np.random.default_rng(seed)
    rows = np.zeros((tokens, layers[-1].index + 1, layers[0].top_k), dtype=np.int64)
    for layer in layers:
        # The largest of random numbers that grow with 1 / id are distinct.
        keys = random.random((tokens, layer.num_experts)) ** np.arange(1, layer.num_experts + 1)
        rows[:, layer.index] = np.argsort(-keys, axis=1)[:, : layer.top_k]
    return rows


def write_traces(
    path: Path, layers: Sequence[MoELayer], answers: int = 3, tokens: int = 20, seed: int = 0
) -> Path:
    """Answers of so many tokens to prompts of 4, as vLLM's server gives them, one a line."""
    lines = []
    for number in range(answers):
        rows = random_rows(4 + tokens - 1, layers, seed + number)
        usage = {"prompt_tokens": 4, "completion_tokens": tokens}
        choice = {"index": 0, "message": {"role": "assistant"}, "routed_experts": npy(rows)}
        said = {"created": 1_793_000_000, "model": "served", "choices": [choice], "usage": usage}
        lines.append(json.dumps({"system_fingerprint": "vllm-0.30.0-ab12", **said}) + "\n")
    path.write_text("".join(lines))
    return path
