"""Checks of an export that run models on the CPU."""

from collections.abc import Generator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from analysis.model.heads import prediction_heads
from analysis.model.moe_model import MoEModel
from analysis.progress import Costs
from pruning.plan.plan import PruningPlan
from pruning.surgery.checks import Check
from pruning.surgery.running import DoesNotLoad, DoesNotRun, Precision, RunModel
from pruning.surgery.verify_costs import compared_dtype, token_shape

MAX_DIFFERENCE = 1e-5  # of logits, absolute, in float32
_SEED = 0
_KINDS = ("missing_keys", "unexpected_keys", "mismatched_keys")


def random_tokens(model: MoEModel, tokens: int) -> Tensor:
    """At least this many seeded token ids, in rows that fit the model's context."""
    random, shape = np.random.default_rng(_SEED), token_shape(model, tokens)
    ids = random.integers(0, int(model.config["vocab_size"]), shape)
    return torch.from_numpy(ids)


def check_load(exported: MoEModel, ids: Tensor, run: RunModel) -> Generator[Costs, None, Check]:
    """Load in the checkpoint's own dtype and run: no missing keys, finite logits."""
    logits, reason = torch.empty(0), ""
    try:
        ran = yield from run(exported, ids, Precision(), None)
        logits, keys = ran.logits, ran.keys
    except DoesNotLoad as error:
        return Check("load", False, f"transformers cannot load the export: {error}")
    except DoesNotRun as error:
        keys, reason = error.keys, str(error)
    # transformers has no prediction heads, and knows the names of some only.
    heads = tuple(head.prefix for head in prediction_heads(exported))
    for kind in _KINDS:
        odd = [key for key in sorted(map(str, keys.get(kind, ()))) if not key.startswith(heads)]
        if odd:
            what = kind.replace("_", " ")
            return Check("load", False, f"transformers reports {len(odd)} {what}: {odd[0]}")
    if reason:
        if "multiple of 16 bytes" in reason:  # of a row of an expert, in transformers' products
            reason += "; export again with --width-multiple-of 8"
        return Check("load", False, f"loads, but does not run: {reason}")
    finite = bool(torch.isfinite(logits).all())
    dtype = str(logits.dtype).removeprefix("torch.")
    outcome = "finite" if finite else "not all finite"
    return Check("load", finite, f"loads in {dtype}; logits of {ids.numel()} tokens are {outcome}")


@dataclass(frozen=True, slots=True)
class Sides:
    """An export, and the original that it is compared with."""

    exported: MoEModel
    source: MoEModel
    plan: PruningPlan
    dequantised: bool = False  # whether FP8 of the original is BF16 in the export


def check_logits(
    sides: Sides, ids: Tensor, run: RunModel
) -> Generator[Costs, None, tuple[Check, float | None]]:
    """Compare logits in float32 with the original, its removed experts and neurons masked.

    If the plan is repaired, what stays is; it selects as few experts per token. Also returns the
    largest difference. Without neurons, sums run in another order and differ by more than allowed
    in float32, so these are compared in float64. One model is in memory at once. Dequantised
    weights are BF16, so both are rounded to that first.
    """
    plan = sides.plan
    dtype = compared_dtype(plan)
    precision = Precision("bfloat16" if sides.dequantised else dtype, dtype)
    try:
        pruned = yield from run(sides.exported, ids, precision, None)
        original = yield from run(sides.source, ids, precision, plan)
    except (DoesNotLoad, DoesNotRun) as error:
        return Check("logits", False, f"cannot be computed in {dtype}: {error}"), None
    difference = float((original.logits - pruned.logits).abs().max())
    # A NaN is not <= anything, so it fails.
    ok = difference <= MAX_DIFFERENCE
    repaired = " and what stays repaired" if plan.repair else ""
    fewer = f", {plan.per_token} experts per token" if plan.top_k else ""
    detail = (
        f"logits differ by at most {difference:.2g} on {ids.numel()} random tokens in {dtype}, "
        f"against the original with what was removed masked{repaired}{fewer} "
        f"(allowed: {MAX_DIFFERENCE:g})"
    )
    return Check("logits", ok, detail), difference
