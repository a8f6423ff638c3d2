"""Checks of an export by what models computed on the CPU."""

import numpy as np
import torch
from torch import Tensor

from analysis.model.heads import prediction_heads
from analysis.model.moe_model import MoEModel
from pruning.surgery.checks import Check
from pruning.surgery.running import DoesNotLoad, DoesNotRun, Outcome, Run
from pruning.surgery.verify_costs import Sides, compared_dtype, token_shape

MAX_DIFFERENCE = 1e-5  # of logits, absolute, in float32
_SEED = 0
_KINDS = ("missing_keys", "unexpected_keys", "mismatched_keys")


def random_tokens(model: MoEModel, tokens: int) -> Tensor:
    """At least this many seeded token ids, in rows that fit the model's context."""
    random, shape = np.random.default_rng(_SEED), token_shape(model, tokens)
    ids = random.integers(0, int(model.config["vocab_size"]), shape)
    return torch.from_numpy(ids)


def check_load(exported: MoEModel, outcome: Outcome) -> Check:
    """Whether an export loads in its own dtype and runs: no missing keys, finite logits."""
    if isinstance(outcome, DoesNotLoad):
        return Check("load", False, f"transformers cannot load the export: {outcome}")
    # transformers has no prediction heads, and knows the names of some only.
    heads = tuple(head.prefix for head in prediction_heads(exported))
    for kind in _KINDS:
        odd = [
            key for key in sorted(map(str, outcome.keys.get(kind, ()))) if not key.startswith(heads)
        ]
        if odd:
            what = kind.replace("_", " ")
            return Check("load", False, f"transformers reports {len(odd)} {what}: {odd[0]}")
    if isinstance(outcome, DoesNotRun):
        reason = str(outcome)
        if "multiple of 16 bytes" in reason:  # of a row of an expert, in transformers' products
            reason += "; export again with --width-multiple-of 8"
        return Check("load", False, f"loads, but does not run: {reason}")
    logits = outcome.logits
    finite = bool(torch.isfinite(logits).all())
    dtype = str(logits.dtype).removeprefix("torch.")
    tokens, said = logits[..., 0].numel(), "finite" if finite else "not all finite"
    return Check("load", finite, f"loads in {dtype}; logits of {tokens} tokens are {said}")


def check_logits(sides: Sides, original: Outcome, pruned: Outcome) -> tuple[Check, float | None]:
    """Compare logits in float32 with the original's, its removed experts and neurons masked.

    If the plan is repaired, what stays is; it selects as few experts per token. Also returns the
    largest difference. Without neurons, sums run in another order and differ by more than allowed
    in float32, so these are compared in float64.
    """
    plan = sides.plan
    dtype = compared_dtype(plan)
    if not isinstance(original, Run) or not isinstance(pruned, Run):
        error = original if isinstance(pruned, Run) else pruned
        return Check("logits", False, f"cannot be computed in {dtype}: {error}"), None
    difference = float((original.logits - pruned.logits).abs().max())
    # A NaN is not <= anything, so it fails.
    ok = difference <= MAX_DIFFERENCE
    repaired = " and what stays repaired" if plan.repair else ""
    fewer = f", {plan.per_token} experts per token" if plan.top_k else ""
    tokens = original.logits[..., 0].numel()
    detail = (
        f"logits differ by at most {difference:.2g} on {tokens} random tokens in {dtype}, "
        f"against the original with what was removed masked{repaired}{fewer} "
        f"(allowed: {MAX_DIFFERENCE:g})"
    )
    return Check("logits", ok, detail), difference
