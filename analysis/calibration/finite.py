"""What to say of values that are no finite numbers: where they came from, and what helps."""

import torch

from analysis.errors import StatsError


def not_finite(source: str, dtype: torch.dtype) -> StatsError:
    """The error for infinities and NaN; `source` is subject and verb, as "Layer 3 gave"."""
    name = str(dtype).removeprefix("torch.")
    # Only half precision overflows where the others do not: bfloat16 reaches as far as float32.
    remedy = (
        "calibrate with --dtype bfloat16 or float32, which reach further."
        if dtype == torch.float16
        else "look for such values in the checkpoint, or for weights that make it overflow."
    )
    return StatsError(f"{source} values that are no finite numbers in {name}; {remedy}")
