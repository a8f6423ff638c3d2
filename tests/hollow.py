"""Hollow checkpoints: real names, types and shapes, data as a hole in the file."""

import json
import math
import struct

BYTES = {"BF16": 2, "F16": 2, "F32": 4, "I32": 4, "U8": 1, "I8": 1, "F8_E4M3": 1}


def hollow(folder, config, tensors):
    """Write a checkpoint of one file; `tensors` are name -> (type, shape) or a shape in BF16."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    header, position = {}, 0
    for name, given in tensors.items():
        dtype, shape = given if isinstance(given[0], str) else ("BF16", given)
        end = position + math.prod(shape) * BYTES[dtype]
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [position, end]}
        position = end
    text = json.dumps(header).encode()
    with (folder / "model.safetensors").open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + position)
    return folder


def experts(block, count, hidden, width, split=None):
    """Shapes of the router and of the experts of one block; `split` makes several of a matrix."""
    found = {f"{block}.gate.weight": (count, hidden)}
    for expert in range(count):
        for name in ("gate_proj", "up_proj", "down_proj"):
            shape = (hidden, width) if name == "down_proj" else (width, hidden)
            stem = f"{block}.experts.{expert}.{name}"
            found |= split(stem, shape) if split else {f"{stem}.weight": shape}
    return found
