"""The bits of a plan as options of llama.cpp's `llama-quantize`."""

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from pruning.plan.bits import FORMATS, OWN

QUANTISER: Final = "llama-quantize"
# Of all tensors that no option names. The options count for a type of fewer bits alone: with F16 or
# BF16 in its place llama-quantize ignores them without a word.
REST: Final = "Q8_0"
_EXPERTS: Final = "ffn_(gate|up|down|gate_up)_exps"


def tensor_types(bits_by_layer: Mapping[int, str], stored: str) -> tuple[str, ...]:
    """`PATTERN=TYPE` for --tensor-type, one for each format; none if no layer has fewer bits.

    `stored` is the type of the file that is quantised, such as bf16, which layers in their own bits
    keep. A pattern is a regular expression that is found in names of tensors.
    """
    layers: dict[str, list[int]] = {}
    for layer, bits in bits_by_layer.items():
        layers.setdefault(bits, []).append(layer)
    if not layers.keys() - {OWN}:
        return ()
    return tuple(
        rf"blk\.({'|'.join(map(str, layers[bits]))})\.{_EXPERTS}="
        + (FORMATS[bits].tensor_type if bits in FORMATS else stored)
        for bits in (OWN, *FORMATS)
        if bits in layers
    )


def quantise_command(types: Sequence[str], source: Path, target: Path) -> str:
    """The command that quantises a GGUF file so."""
    files = f"{shlex.quote(str(source))} {shlex.quote(str(target))}"
    return f"{QUANTISER}{named_types(types)} {files} {REST}"


def named_types(types: Sequence[str]) -> str:
    """The options of a command, with a blank before each."""
    return "".join(f" --tensor-type {shlex.quote(words)}" for words in types)
