"""Fewer bits for expert weights: the formats that evaluations simulate, and their bytes. No torch.

A format stores groups of 32 weights along the input dimension, each with its own scale. Exports
never hold such weights: engines have their own tools for that.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final, Literal, get_args

from analysis.errors import PlanError
from analysis.families.base import MOST_LAYERS
from pruning.plan.layer_words import MOST_DIGITS, ranges

GROUP: Final = 32  # weights that share a scale
OWN: Final = "16"  # as the checkpoint stores them
BY_LAYER: Final = "by layer"  # in records and tables: layers have bits of their own


@dataclass(frozen=True, slots=True)
class BitsFormat:
    """How a group of weights is stored; a last group may be shorter."""

    name: str  # as --bits takes it
    bits: int  # of a code
    scale_bytes: int  # of a group: a scale in float16, with a minimum in float16, or an exponent
    rule: str  # how codes are found: nearest, signed, minimum, or mxfp4; see `quantised`
    engine: str  # what llama.cpp calls it; empty if no engine has it
    near: str  # the type of llama.cpp that takes its place, the same or a finer one

    @property
    def label(self) -> str:
        """For people."""
        return self.name.upper() if self.rule == "mxfp4" else f"{self.name} bits"

    @property
    def tensor_type(self) -> str:
        """`near` for one tensor of a GGUF file: without the names of mixtures."""
        return self.near.removesuffix("_MOE").removesuffix("_M").lower()

    @property
    def per_weight(self) -> float:
        """Bits a weight in whole groups, with the scale."""
        return self.bits + 8 * self.scale_bytes / GROUP

    def row_bytes(self, columns: int) -> int:
        """Bytes of a row of so many weights."""
        groups, rest = divmod(columns, GROUP)
        last = -(-rest * self.bits // 8) + self.scale_bytes if rest else 0
        return groups * (GROUP * self.bits // 8 + self.scale_bytes) + last


_FORMATS = (
    BitsFormat("8", 8, 2, "nearest", "Q8_0", "Q8_0"),
    BitsFormat("6", 6, 2, "signed", "", "Q6_K"),
    BitsFormat("5", 5, 2, "signed", "Q5_0", "Q5_0"),
    BitsFormat("4", 4, 2, "signed", "Q4_0", "Q4_0"),
    BitsFormat("mxfp4", 4, 1, "mxfp4", "MXFP4", "MXFP4_MOE"),
    BitsFormat("3", 3, 4, "minimum", "", "Q3_K_M"),
    BitsFormat("2", 2, 4, "minimum", "", "Q2_K"),
)
FORMATS: Final = {format_.name: format_ for format_ in _FORMATS}  # the most bits first
FormatName = Literal["8", "6", "5", "4", "mxfp4", "3", "2"]
BitsName = Literal["16", FormatName]
BITS: Final[tuple[BitsName, ...]] = get_args(BitsName)  # as they are, and the formats


def bits_words(bits: str) -> str:
    """What follows the name of a plan whose weights are simulated in fewer bits; else empty."""
    if bits == BY_LAYER:
        return ", bits by layer"
    return f", {FORMATS[bits].label}" if bits in FORMATS else ""


class BitsMixin:
    """What a plan says of bits: one format for all layers, or one for each of some."""

    bits: str
    layer_bits: Mapping[int, str]
    kept: Mapping[int, tuple[int, ...]]

    @property
    def named_bits(self) -> str:
        """The format of all layers, or BY_LAYER; empty if weights are the checkpoint's own."""
        return BY_LAYER if self.layer_bits else self.bits

    def bits_in(self, layer: int) -> str:
        """The format of a layer's experts; empty if they are as the checkpoint has them."""
        return self.layer_bits.get(layer, self.bits)

    @property
    def bits_by_layer(self) -> dict[int, str]:
        """Layer -> format of its experts, OWN if they are as they are; of a complete plan."""
        return {layer: self.bits_in(layer) or OWN for layer in self.kept}

    def bits_to_json(self) -> dict[str, Any]:
        """`bits` or `layer_bits` of plan.json; empty if weights are the checkpoint's own."""
        by_layer = {str(layer): name for layer, name in self.layer_bits.items()}
        return {
            **({"bits": self.bits} if self.bits else {}),
            **({"layer_bits": by_layer} if by_layer else {}),
        }


def ordered_layer_bits(layer_bits: Mapping[int, str], bits: str) -> Mapping[int, str]:
    """Formats by layer in order of the layers; a PlanError if they or all layers' are unknown."""
    if bits not in ("", *FORMATS):
        raise PlanError(f"The plan's 'bits' is {bits!r}; this version simulates {_names()}.")
    if bits and layer_bits:
        raise PlanError(
            f"The plan has 'bits' {bits!r} and 'layer_bits'; give one for all layers, or list "
            "layers, of which those that are absent stay as they are."
        )
    for layer, name in layer_bits.items():
        if name not in (*FORMATS,):  # a list or an object has no hash
            raise PlanError(
                f"The plan's 'layer_bits' has {name!r} for layer {layer}; this version simulates "
                f"{_names()}. Leave out a layer that stays as it is."
            )
    return MappingProxyType({layer: layer_bits[layer] for layer in sorted(layer_bits)})


def fit_layer_bits(
    bits: str, layer_bits: Mapping[int, str], layers: Collection[int]
) -> tuple[str, Mapping[int, str]]:
    """Both for a model of these sparse layers: one format of all of them is `bits`."""
    for layer in layer_bits:
        if layer not in layers:
            raise PlanError(
                f"The plan's 'layer_bits' names layer {layer}, which has no routed experts; the "
                f"model's sparse layers are {ranges(layers)}."
            )
    formats = {layer_bits.get(layer, bits) for layer in layers}
    return (formats.pop(), {}) if len(formats) == 1 else ("", layer_bits)


def layer_bits_from_json(raw: object) -> dict[int, str]:
    """`layer_bits` of a plan.json."""
    if not isinstance(raw, dict) or len(raw) > MOST_LAYERS:
        raise PlanError("The plan's 'layer_bits' is no object of layers and formats.")
    for key in raw:
        if not (key.isascii() and key.isdigit() and len(key) <= MOST_DIGITS):
            raise PlanError(f"The plan's 'layer_bits' names {key!r}, which is not a layer.")
    return {int(key): name for key, name in raw.items()}


def _names() -> str:
    return ", ".join(FORMATS)
