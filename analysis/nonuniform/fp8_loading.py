"""transformers' dequantisation of FP8, with blocks that may be cut.

transformers derives blocks from the shapes of a matrix and its scales. That is an error for a
matrix that ends within a block, or wrong in silence: 192 rows with two scales are 128 and 64.
"""

import torch
from torch import Tensor
from transformers.integrations.finegrained_fp8 import Fp8Dequantize

from analysis.checkpoint.fp8 import apply_scales, block_shape

# Older ones (5.15) cast what they read to the parameter's type first, which is exact.
_VALUES = (torch.float8_e4m3fn, torch.bfloat16, torch.float16, torch.float32, torch.float64)

_dequantise_evenly = Fp8Dequantize._dequantize_one


def _dequantise(
    self: Fp8Dequantize, quantized: Tensor, scales: Tensor, output_dtype: torch.dtype | None = None
) -> Tensor:
    stated = getattr(self.hf_quantizer.quantization_config, "weight_block_size", None)
    block = block_shape(quantized.shape, scales.shape, stated)
    is_plain = quantized.dtype in _VALUES and scales.dtype.is_floating_point
    if block is None or not is_plain:  # FP4 in pairs, exponents as bytes, one scale for all
        evenly: Tensor = _dequantise_evenly(self, quantized, scales, output_dtype)
        return evenly
    values = quantized.to(torch.float32)
    apply_scales(values, scales.to(torch.float32), block)
    scale_dtype = scales.dtype if scales.element_size() >= 2 else torch.bfloat16
    return values.to(output_dtype or scale_dtype)


def take_cut_blocks() -> None:
    """Let transformers dequantise FP8 by the blocks that config.json states; for this process."""
    Fp8Dequantize._dequantize_one = _dequantise
