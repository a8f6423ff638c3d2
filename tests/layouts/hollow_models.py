"""Published layouts as checkpoints: names from transformers' own classes, data as a hole or random.

transformers builds the model on the meta device and names its tensors as it would save them. What
it does not build is named by rule, as the published headers have it: prediction heads, scales of
FP8, blocks of MXFP4, packed integers.
"""

import json
import math
import struct
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import save_file
from transformers.core_model_loading import revert_weight_conversion

from analysis.families.listing import FAMILIES
from analysis.families.native import register_native
from analysis.families.needs import why_too_old
from layouts.packed import AWQ_SETTINGS, FLOAT_SETTINGS, GROUP, SPLITS, gptq_settings
from layouts.published import Layout

BYTES = {"BF16": 2, "F16": 2, "F32": 4, "F8_E4M3": 1, "U8": 1, "I64": 8, "I32": 4}
_STORED = {torch.int64: "I64"}
_DTYPES = {"BF16": torch.bfloat16, "F32": torch.float32, "F8_E4M3": torch.float8_e4m3fn}
_DTYPES |= {"U8": torch.uint8, "I64": torch.int64, "I32": torch.int32, "F16": torch.float16}
FP8_BLOCK = 128
INT4_GROUP = 32
# Of a layer, what FP8 checkpoints leave in bfloat16: norms have one dimension.
_WIDE = ("gate.weight", "weights_proj.weight", "eh_proj.weight")
_BESIDE_LAYER = ("embed_tokens.weight", "shared_head.head.weight")

# name -> (dtype, shape)
Header = Mapping[str, tuple[str, tuple[int, ...]]]
Entries = dict[str, tuple[str, tuple[int, ...]]]


def header_of(layout: Layout, folder: Path) -> Entries:
    """Every tensor of a layout's checkpoint; writes config.json for transformers to read."""
    folder.mkdir(parents=True, exist_ok=True)
    built = {**layout.config, "model_type": layout.built_as or layout.config["model_type"]}
    (folder / "config.json").write_text(json.dumps(built))
    header = _named(layout, folder)
    if heads := {"beyond": _heads_beyond, "mtp": _heads_mtp}.get(layout.heads):
        header |= heads(layout, header)
    if layout.stored:
        header = _split(header, _STORING[layout.stored])
    settings = {**_QUANTISED, "gptq": gptq_settings(layout.experts)}
    config = {**layout.config}
    if layout.stored in settings:
        config["quantization_config"] = settings[layout.stored]
    (folder / "config.json").write_text(json.dumps(config))
    return header


_QUANTISED: dict[str, dict[str, Any]] = {
    "fp8": {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [FP8_BLOCK, FP8_BLOCK]},
    "mxfp4": {"quant_method": "mxfp4"},
    "int4": {
        **{"quant_method": "compressed-tensors", "format": "pack-quantized"},
        "config_groups": {"group_0": {"weights": {"num_bits": 4, "group_size": INT4_GROUP}}},
    },
    "awq": AWQ_SETTINGS,
    **FLOAT_SETTINGS,
}


def _named(layout: Layout, folder: Path) -> Entries:
    model_type = layout.config["model_type"]
    family = FAMILIES.get(layout.built_as or model_type)
    if family and (why := why_too_old(family)):
        pytest.skip(why)
    register_native(model_type)
    config = transformers.AutoConfig.from_pretrained(folder)
    auto = getattr(transformers, layout.auto_class)
    with torch.device("meta"):
        model = auto.from_config(config, dtype=torch.bfloat16)
    twice = set(model.all_tied_weights_keys) | set(model._keys_to_ignore_on_save or ())
    held = {name: tensor for name, tensor in model.state_dict().items() if name not in twice}
    stored = held if layout.fused else revert_weight_conversion(model, held)
    # Floats by the table: what transformers computes in float32 differs between its versions.
    single = family.single if family else ()

    def dtype_of(name: str, tensor: torch.Tensor) -> str:
        if not tensor.is_floating_point():
            return _STORED[tensor.dtype]
        return "F32" if name.endswith(single) else "BF16"

    return {name: (dtype_of(name, tensor), tuple(tensor.shape)) for name, tensor in stored.items()}


def _copied(header: Header, last: str, prefix: str) -> Entries:
    """A layer of a prediction head: it has the tensors of a layer of the trunk."""
    start = f"{last}."
    return {
        f"{prefix}.{name.removeprefix(start)}": entry
        for name, entry in header.items()
        if name.startswith(start)
    }


def _heads_beyond(layout: Layout, header: Header) -> Header:
    """As DeepSeek-V3 and GLM: a layer beyond the depth, with an embedding and a head of its own."""
    config = layout.config
    depth, hidden, vocab = (
        config[key] for key in ("num_hidden_layers", "hidden_size", "vocab_size")
    )
    name = f"model.layers.{depth}"
    return _copied(header, f"model.layers.{depth - 1}", name) | {
        f"{name}.embed_tokens.weight": ("BF16", (vocab, hidden)),
        f"{name}.enorm.weight": ("BF16", (hidden,)),
        f"{name}.hnorm.weight": ("BF16", (hidden,)),
        f"{name}.eh_proj.weight": ("BF16", (hidden, 2 * hidden)),
        f"{name}.shared_head.norm.weight": ("BF16", (hidden,)),
        f"{name}.shared_head.head.weight": ("BF16", (vocab, hidden)),
    }


def _heads_mtp(layout: Layout, header: Header) -> Header:
    """As Qwen3-Next and Qwen3.5: a trunk of its own, whose layer has full attention.

    Experts of Qwen3.5 are stacked in the trunk and apart in the head.
    """
    text = layout.text
    depth, hidden = text["num_hidden_layers"], text["hidden_size"]
    trunk = "model.language_model.layers" if "text_config" in layout.config else "model.layers"
    layer = _copied(header, f"{trunk}.{depth - 1}", "mtp.layers.0")
    for stack, parts in (("gate_up_proj", ("gate_proj", "up_proj")), ("down_proj", ("down_proj",))):
        if held := layer.pop(f"mtp.layers.0.mlp.experts.{stack}", None):
            dtype, (count, rows, columns) = held
            layer |= {
                f"mtp.layers.0.mlp.experts.{n}.{part}.weight": (
                    dtype,
                    (rows // len(parts), columns),
                )
                for n in range(count)
                for part in parts
            }
    return layer | {
        "mtp.fc.weight": ("BF16", (hidden, 2 * hidden)),
        "mtp.norm.weight": ("BF16", (hidden,)),
        "mtp.pre_fc_norm_embedding.weight": ("BF16", (hidden,)),
        "mtp.pre_fc_norm_hidden.weight": ("BF16", (hidden,)),
    }


def _split(header: Header, parts: Callable[[str, str, tuple[int, ...]], Entries]) -> Entries:
    """Each tensor as its parts; what has none stays as it is."""
    found: Entries = {}
    for name, (dtype, shape) in header.items():
        found |= parts(name, dtype, shape) or {name: (dtype, shape)}
    return found


def _in_fp8(name: str, dtype: str, shape: tuple[int, ...]) -> Entries:
    """Matrices of the layers in FP8, each with a scale for every block of 128 by 128."""
    if ".layers." not in name or len(shape) != 2 or name.endswith((*_WIDE, *_BESIDE_LAYER)):
        # DeepSeek's correction bias is in float32.
        return {name: ("F32" if name.endswith("_correction_bias") else dtype, shape)}
    grid = tuple(-(-size // FP8_BLOCK) for size in shape)
    return {name: ("F8_E4M3", shape), f"{name}_scale_inv": ("F32", grid)}


def _in_mxfp4(name: str, _: str, shape: tuple[int, ...]) -> Entries:
    """Experts of gpt-oss: per row, blocks of 32 numbers in 16 bytes and a scale for each."""
    if not name.endswith(("experts.gate_up_proj", "experts.down_proj")):
        return {}
    count, inputs, rows = shape
    blocks = (count, rows, inputs // 32)
    return {f"{name}_blocks": ("U8", (*blocks, 16)), f"{name}_scales": ("U8", blocks)}


def _in_int4(name: str, _: str, shape: tuple[int, ...]) -> Entries:
    """Experts as compressed-tensors packs them: eight to an integer, a scale for each group."""
    if ".experts." not in name:
        return {}
    rows, columns = shape
    return {
        f"{name}_packed": ("I32", (rows, columns // 8)),
        f"{name}_scale": ("BF16", (rows, columns // INT4_GROUP)),
        f"{name}_shape": ("I32", (2,)),
    }


def _packs(name: str, shape: tuple[int, ...]) -> bool:
    return ".layers." in name and len(shape) == 2 and not name.endswith("gate.weight")


def _in_gptq(name: str, dtype: str, shape: tuple[int, ...]) -> Entries:
    """Eight inputs in an integer, scales, zeros, the group of each input; the rest in float16."""
    entries = _in_awq(name, dtype, shape)
    if _packs(name, shape):
        (rows, columns), stem = shape, name.removesuffix("weight")
        entries |= {
            f"{stem}qweight": ("I32", (columns // 8, rows)),
            f"{stem}g_idx": ("I32", (columns,)),
        }
    return entries


def _in_awq(name: str, _: str, shape: tuple[int, ...]) -> Entries:
    """Eight outputs in an integer; scales and zeros; the rest in float16."""
    if not _packs(name, shape):
        return {name: ("F16", shape)}
    (rows, columns), stem = shape, name.removesuffix("weight")
    return {
        f"{stem}qweight": ("I32", (columns, rows // 8)),
        f"{stem}qzeros": ("I32", (columns // GROUP, rows // 8)),
        f"{stem}scales": ("F16", (columns // GROUP, rows)),
    }


def _in_floats(stored: str, name: str, _: str, shape: tuple[int, ...]) -> Entries:
    """Matrices of layers as their parts; the rest as it is."""
    if not _packs(name, shape) or name.endswith((*_WIDE, *_BESIDE_LAYER)):
        return {}
    return SPLITS[stored](name.removesuffix(".weight"), *shape)


_STORING = {
    **{stored: partial(_in_floats, stored) for stored in SPLITS},
    **{"fp8": _in_fp8, "mxfp4": _in_mxfp4, "int4": _in_int4, "gptq": _in_gptq, "awq": _in_awq},
}


def write_hollow(header: Header, folder: Path) -> None:
    """A checkpoint of two shards and an index, whose data are holes: it takes no disk."""
    names = list(header)
    half = len(names) // 2
    shards = {
        "model-00001-of-00002.safetensors": names[:half],
        "model-00002-of-00002.safetensors": names[half:],
    }
    total = 0
    for shard, held in shards.items():
        entries, position = {}, 0
        for name in held:
            dtype, shape = header[name]
            end = position + math.prod(shape) * BYTES[dtype]
            entries[name] = {"dtype": dtype, "shape": shape, "data_offsets": [position, end]}
            position = end
        packed = json.dumps(entries).encode()
        with (folder / shard).open("wb") as file:
            file.write(struct.pack("<Q", len(packed)) + packed)
            file.truncate(8 + len(packed) + position)
        total += position
    weight_map = {name: shard for shard, held in shards.items() for name in held}
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def write_random(header: Header, folder: Path) -> None:
    """The same with numbers, in one file."""
    seeded = torch.Generator().manual_seed(0)
    tensors = {}
    for name, (dtype, shape) in header.items():
        if name.endswith("_scales"):  # of MXFP4: exponents of two, less 127
            drawn = torch.randint(118, 123, shape, generator=seeded).to(_DTYPES[dtype])
        elif dtype in ("U8", "I64", "I32"):
            drawn = torch.randint(0, 250, shape, generator=seeded).to(_DTYPES[dtype])
        elif name.endswith("_scale_inv"):
            drawn = torch.rand(shape, generator=seeded) * 0.02 + 0.01
        else:
            drawn = (torch.randn(shape, generator=seeded) * 0.1).to(_DTYPES[dtype])
        tensors[name] = drawn
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
