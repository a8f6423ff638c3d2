"""Checkpoints whose weights are quantised on disk: computed in bfloat16, dequantised as they load.

What fits the checkpoint are then the statistics of the weights that it stands for, and they are the
same with and without an accelerator. Kernels that compute in fewer bits round activations too.
"""

from collections.abc import Callable, Mapping
from typing import Any

from transformers import FineGrainedFP8Config, Mxfp4Config

from analysis.errors import UnsupportedModelError
from analysis.model import MoEModel

DEQUANTISED_TYPE = "bfloat16"
_METHODS: Mapping[str, Callable[[], Any]] = {
    "fp8": lambda: FineGrainedFP8Config(dequantize=True),
    "mxfp4": lambda: Mxfp4Config(dequantize=True),
}


def quantisation(model: MoEModel) -> str:
    """How the checkpoint's weights are quantised, by transformers' name; empty: they are not."""
    for config in (model.checkpoint.config, model.config):
        if stored := config.get("quantization_config"):
            return str(stored.get("quant_method", "unknown"))
    return ""


def dequantising_config(model: MoEModel) -> Any:
    """What tells transformers to dequantise while loading; None where nothing is quantised."""
    method = quantisation(model)
    if not method:
        return None
    if method not in _METHODS:
        raise UnsupportedModelError(
            f"{model.name} is quantised with {method}, which cannot be calibrated; of quantised "
            f"checkpoints {' and '.join(_METHODS)} can. Use the checkpoint in full precision."
        )
    return _METHODS[method]()
