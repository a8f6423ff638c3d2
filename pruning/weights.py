"""How many weights a tensor stands for."""

import re

from analysis.checkpoint import TensorEntry
from analysis.model import MoEModel

# Parts of quantised weights: scales stand for no weight of their own, a byte of MXFP4 for two.
_SCALES = re.compile(r".+[._](scales?|scale_inv)")
_PAIRS = re.compile(r".+_blocks")


def num_weights(model: MoEModel, entry: TensorEntry) -> int:
    """Weights that a tensor stands for: its elements, but for the parts of quantised ones."""
    if not model.checkpoint.config.get("quantization_config"):
        return entry.numel
    if _SCALES.fullmatch(entry.name):
        return 0
    return entry.numel * (2 if entry.dtype == "U8" and _PAIRS.fullmatch(entry.name) else 1)
