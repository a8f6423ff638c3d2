"""gpt-oss as on the hub: blocks of 32 numbers of a row in 16 bytes, a scale for each."""

import torch

BLOCK = 32


def to_mxfp4(tensors, plain_dtype=torch.bfloat16):
    """Stacked experts as drawn codes and powers of two near 1/16; the others in a plain dtype."""
    seeded = torch.Generator().manual_seed(1)
    stored = {}
    for name, tensor in tensors.items():
        if not name.endswith(("experts.gate_up_proj", "experts.down_proj")):
            stored[name] = tensor.to(plain_dtype)
            continue
        experts, columns, rows = tensor.shape
        shape = (experts, rows, columns // BLOCK)
        codes = torch.randint(0, 256, (*shape, 16), generator=seeded, dtype=torch.uint8)
        scales = torch.randint(121, 125, shape, generator=seeded, dtype=torch.uint8)
        stored |= {f"{name}_blocks": codes, f"{name}_scales": scales}
    return stored
