"""A sum over tensors, kept beside them: what was saved is what is read, or is not used."""

import zlib
from collections.abc import Mapping

import torch
from torch import Tensor


def content_sum(tensors: Mapping[str, Tensor], text: str = "") -> str:
    """CRC-32 of the names, shapes and bytes of tensors on the CPU, and of a text."""
    found = zlib.crc32(text.encode())
    for name in sorted(tensors):
        tensor = tensors[name].contiguous()
        found = zlib.crc32(f"{name} {tensor.dtype} {list(tensor.shape)}".encode(), found)
        found = zlib.crc32(tensor.reshape(-1).view(torch.uint8).numpy().data, found)
    return f"{found:08x}"
