"""Numbers read from the bytes of safetensors files."""

import pytest
import torch

from analysis.elements import FLOAT_BYTES, as_float64

TYPES = {"BF16": torch.bfloat16, "F16": torch.float16, "F32": torch.float32, "F64": torch.float64}


@pytest.mark.parametrize("dtype", FLOAT_BYTES)
def test_bytes_become_the_numbers_that_torch_has_stored(dtype):
    generator = torch.Generator().manual_seed(3)
    numbers = torch.randn(1000, generator=generator, dtype=torch.float64) * 100
    # Subnormal, infinite, and both zeros among them.
    extremes = torch.tensor([0.0, -0.0, 1e-40, 6e-8, -torch.inf], dtype=torch.float64)
    stored = torch.cat([numbers, extremes]).to(TYPES[dtype])
    raw = stored.view(torch.uint8).numpy().tobytes()
    assert FLOAT_BYTES[dtype] == stored.itemsize
    assert as_float64(raw, dtype).tobytes() == stored.double().numpy().tobytes()
