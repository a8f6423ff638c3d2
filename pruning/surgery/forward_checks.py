"""Checks of an export that load models and run them on the CPU."""

import gc
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForCausalLM

from analysis.model import MoEModel
from pruning.masking import masked
from pruning.plan import PruningPlan
from pruning.surgery.byte_checks import Check

MAX_DIFFERENCE = 1e-5  # of logits, absolute, in float32
_SEED = 0
_ROW_TOKENS = 32


@dataclass(frozen=True, slots=True)
class LogitsCheck:
    """The outcome of the comparison with the masked original.

    Args:
        check: whether the logits agree.
        max_abs_diff: largest difference of two logits.
    """

    check: Check
    max_abs_diff: float


def random_tokens(config: Any, tokens: int) -> torch.Tensor:
    """Seeded token ids, in rows short enough for the model's context."""
    length = min(tokens, _ROW_TOKENS, int(config.get("max_position_embeddings") or _ROW_TOKENS))
    shape = (max(1, tokens // length), length)
    ids = np.random.default_rng(_SEED).integers(0, int(config["vocab_size"]), shape)
    return torch.from_numpy(ids)


def _load(path: Path, dtype: "torch.dtype | str") -> tuple[Any, Any]:
    model, info = AutoModelForCausalLM.from_pretrained(
        path, dtype=dtype, output_loading_info=True, local_files_only=True
    )
    return model.eval(), info


def _logits(model: Any, ids: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        result: torch.Tensor = model(ids, use_cache=False, output_router_logits=False).logits
    return result


def check_load(path: Path, ids: torch.Tensor) -> Check:
    """Load in the checkpoint's own element type and run: no key missing, all logits finite."""
    try:
        model, info = _load(path, "auto")
    except (RuntimeError, ValueError, OSError, KeyError) as error:
        reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
        return Check("load", False, f"transformers cannot load the export: {reason}")
    for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        if keys := sorted(map(str, info[kind])):
            what = kind.replace("_", " ")
            return Check("load", False, f"transformers reports {len(keys)} {what}: {keys[0]}")
    logits = _logits(model, ids)
    finite = bool(torch.isfinite(logits).all())
    dtype = str(logits.dtype).removeprefix("torch.")
    outcome = "finite" if finite else "not all finite"
    return Check("load", finite, f"loads in {dtype}; logits of {ids.numel()} tokens are {outcome}")


def check_logits(path: Path, source: MoEModel, plan: PruningPlan, ids: torch.Tensor) -> LogitsCheck:
    """Compare with the original, its removed experts masked, both in float32.

    One model is in memory at a time.
    """
    exported, _ = _load(path, torch.float32)
    wanted = _logits(exported, ids)
    del exported
    gc.collect()  # models hold cycles; without this both would be in memory
    original, _ = _load(source.checkpoint.path, torch.float32)
    with masked(original, source.family, plan):
        difference = float((_logits(original, ids) - wanted).abs().max())
    # A NaN is not <= anything, so it fails.
    ok = difference <= MAX_DIFFERENCE
    detail = (
        f"max |d| of the logits is {difference:.2g} on {ids.numel()} random tokens in float32, "
        f"against the original with the removed experts masked (allowed: {MAX_DIFFERENCE:g})"
    )
    return LogitsCheck(Check("logits", ok, detail), difference)
