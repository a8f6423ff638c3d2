"""Fewer bits for expert weights: the formats that evaluations simulate, and their bytes. No torch.

A format stores groups of 32 weights along the input dimension, each with its own scale. Exports
never hold such weights: engines have their own tools for that.
"""

from dataclasses import dataclass
from typing import Final, Literal, get_args

GROUP: Final = 32  # weights that share a scale
OWN: Final = "16"  # as the checkpoint stores them


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
BitsName = Literal["16", "8", "6", "5", "4", "mxfp4", "3", "2"]
BITS: Final[tuple[BitsName, ...]] = get_args(BitsName)  # as they are, and the formats


def bits_words(bits: str) -> str:
    """What follows the name of a plan whose weights are simulated in fewer bits; else empty."""
    return f", {FORMATS[bits].label}" if bits in FORMATS else ""
