"""gpt-oss as on the hub: blocks of 32 numbers of a row in 16 bytes, a scale for each."""

import torch

BLOCK = 32
# What the sixteen codes of four bits stand for.
FP4 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])


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


def from_mxfp4(stored, dtype):
    """The plain tensors that stored ones stand for; of two codes in a byte the lower is first."""
    plain = {}
    for name, tensor in stored.items():
        if name.endswith("_blocks"):
            codes = torch.stack([tensor & 15, tensor >> 4], dim=-1).flatten(-2).long()
            scales = torch.exp2(stored[name.replace("_blocks", "_scales")].float() - 127)
            rows = (FP4[codes] * scales[..., None]).flatten(-2)
            plain[name.removesuffix("_blocks")] = rows.transpose(1, 2).contiguous().to(dtype)
        elif not name.endswith("_scales"):
            plain[name] = tensor
    return plain
