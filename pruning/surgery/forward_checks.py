"""Checks of an export that load models and run them on the CPU."""

import gc
from typing import Any

import numpy as np
import torch

from analysis.calibration.loading import (
    LOADING_ERRORS,
    cast_as_plain,
    dequantising_config,
    experts_option,
)
from analysis.checkpoint.aligned import align_weights
from analysis.errors import first_line
from analysis.model.heads import prediction_heads
from analysis.model.moe_model import MoEModel
from analysis.nonuniform.loading import auto_class_of
from pruning.engine.masking import masked
from pruning.plan.plan import PruningPlan
from pruning.surgery.checks import Check

MAX_DIFFERENCE = 1e-5  # of logits, absolute, in float32
_SEED = 0
_ROW_TOKENS = 32


def random_tokens(model: MoEModel, tokens: int) -> torch.Tensor:
    """At least this many seeded token ids, in rows that fit the model's context."""
    config = model.config
    length = min(tokens, _ROW_TOKENS, int(config.get("max_position_embeddings") or _ROW_TOKENS))
    shape = (-(-tokens // length), length)
    ids = np.random.default_rng(_SEED).integers(0, int(config["vocab_size"]), shape)
    return torch.from_numpy(ids)


def _load(model: MoEModel, dtype: torch.dtype | str) -> tuple[Any, Any]:
    options: dict[str, Any] = dict(experts_option(dtype))
    # Alike on every machine: with a GPU, transformers would keep weights quantised.
    if dequantising := dequantising_config(model):
        options["quantization_config"] = dequantising
    loaded, info = auto_class_of(model).from_pretrained(
        model.checkpoint.path,
        dtype=dtype,
        output_loading_info=True,
        local_files_only=True,
        trust_remote_code=False,
        **options,
    )
    if model.quantisation:
        cast_as_plain(loaded, loaded.config.dtype)
    align_weights(loaded)
    return loaded.eval(), info


def _logits(model: Any, ids: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        result: torch.Tensor = model(ids, use_cache=False, output_router_logits=False).logits
    return result


def check_load(exported: MoEModel, ids: torch.Tensor) -> Check:
    """Load in the checkpoint's own dtype and run: no missing keys, finite logits."""
    try:
        model, info = _load(exported, "auto")
    except LOADING_ERRORS as error:
        return Check("load", False, f"transformers cannot load the export: {first_line(error)}")
    # transformers has no prediction heads, and knows the names of some only.
    heads = tuple(head.prefix for head in prediction_heads(exported))
    for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        keys = [key for key in sorted(map(str, info[kind])) if not key.startswith(heads)]
        if keys:
            what = kind.replace("_", " ")
            return Check("load", False, f"transformers reports {len(keys)} {what}: {keys[0]}")
    try:
        logits = _logits(model, ids)
    except RuntimeError as error:
        reason = first_line(error)
        if "multiple of 16 bytes" in reason:  # of a row of an expert, in transformers' products
            reason += "; export again with --width-multiple-of 8"
        return Check("load", False, f"loads, but does not run: {reason}")
    finite = bool(torch.isfinite(logits).all())
    dtype = str(logits.dtype).removeprefix("torch.")
    outcome = "finite" if finite else "not all finite"
    return Check("load", finite, f"loads in {dtype}; logits of {ids.numel()} tokens are {outcome}")


def check_logits(
    exported: MoEModel,
    source: MoEModel,
    plan: PruningPlan,
    ids: torch.Tensor,
    *,
    dequantised: bool = False,
) -> tuple[Check, float]:
    """Compare logits in float32 with the original, its removed experts and neurons masked.

    If the plan is repaired, what stays is; it selects as few experts per token. Also returns the
    largest difference. Without neurons, sums run in another order and differ by more than allowed
    in float32, so these are compared in float64. One model is in memory at once. `dequantised`: the
    weights of both are rounded to bfloat16 first, as those of the export are.
    """
    dtype = torch.float64 if plan.kept_neurons else torch.float32
    stored = torch.bfloat16 if dequantised else dtype
    pruned = _load(exported, stored)[0].to(dtype)
    pruned_logits = _logits(pruned, ids)
    del pruned
    gc.collect()  # models hold reference cycles; else both would be in memory
    original = _load(source, stored)[0].to(dtype)
    with masked(original, source.family, plan):
        difference = float((_logits(original, ids) - pruned_logits).abs().max())
    # A NaN is not <= anything, so it fails.
    ok = difference <= MAX_DIFFERENCE
    repaired = " and what stays repaired" if plan.repair else ""
    fewer = f", {plan.top_k} experts per token" if plan.top_k else ""
    detail = (
        f"logits differ by at most {difference:.2g} on {ids.numel()} random tokens in "
        f"{str(dtype).removeprefix('torch.')}, against the original with what was removed "
        f"masked{repaired}{fewer} "
        f"(allowed: {MAX_DIFFERENCE:g})"
    )
    return Check("logits", ok, detail), difference
