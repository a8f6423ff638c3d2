"""A checkpoint in FP8 whose last blocks are cut, and the plain one that it stands for."""

import json

import numpy as np
import torch
from safetensors.torch import load_file, save_file

from families.configs import BY_NAME
from families.tiny_models import tiny_model

# No size is a multiple of these; some have a number of scales that divides them all the same.
BLOCK = (5, 7)


def quantised(matrix, scale_dtype=torch.float32, block=BLOCK, even=False):
    """Bytes, scales, and in float32 what they stand for; each element by the index of its block.

    `even`: scales are powers of two, so that the numbers are those of bfloat16 as well.
    """
    weights = matrix.float().numpy()
    rows, columns = (
        np.arange(size) // block for size, block in zip(weights.shape, block, strict=True)
    )
    scales = np.zeros((rows[-1] + 1, columns[-1] + 1), dtype=np.float32)
    np.maximum.at(scales, (rows[:, None], columns[None, :]), np.abs(weights))
    scales /= np.float32(448)
    stored = torch.from_numpy(np.exp2(np.ceil(np.log2(scales))) if even else scales).to(scale_dtype)
    scale = stored.float().numpy()[rows[:, None], columns[None, :]]
    codes = torch.from_numpy(weights / scale).to(torch.float8_e4m3fn)
    return codes, stored, torch.from_numpy(codes.float().numpy() * scale)


def to_fp8_blocks(tensors, block=BLOCK, scale_dtype=torch.float32, even=False):
    """The tensors of a DeepSeek-V3 in FP8, and those that they stand for, with plain matrices."""
    stored, meant = {}, {}
    for name, tensor in tensors.items():
        stored[name] = meant[name] = tensor
        if name.endswith(".weight") and "proj" in name:
            codes, scales, meant[name] = quantised(tensor, scale_dtype, block, even)
            stored |= {name: codes, f"{name}_scale_inv": scales}
    return stored, meant


def fp8_settings(block=BLOCK):
    """What config.json says of such a quantisation."""
    return {
        "quant_method": "fp8",
        "weight_block_size": block,
        "fmt": "e4m3",
        "activation_scheme": "dynamic",
        "modules_to_not_convert": ["lm_head", "gate"],
    }


def write_fp8_pair(
    folder, plain_dtype=torch.float32, scale_dtype=torch.float32, model=None, block=BLOCK
):
    """Folders of a model (a DeepSeek-V3) in FP8, and of the same with plain matrices."""
    fp8, plain = folder / "fp8", folder / "plain"
    model = model or tiny_model(BY_NAME["deepseek_v3"])
    model.save_pretrained(plain, save_original_format=True)
    file = plain / "model.safetensors"
    stored, meant = to_fp8_blocks(load_file(file), block, scale_dtype)
    for name in stored:
        if f"{name}_scale_inv" in stored:
            meant[name] = meant[name].to(plain_dtype)
    fp8.mkdir()
    save_file(stored, fp8 / file.name, {"format": "pt"})
    save_file(meant, file, {"format": "pt"})
    config = json.loads((plain / "config.json").read_text())
    config |= {"quantization_config": fp8_settings(block)}
    (fp8 / "config.json").write_text(json.dumps(config))
    return fp8, plain
