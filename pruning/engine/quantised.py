"""What expert weights become in fewer bits: rounded to a format and back. See `bits`.

The arithmetic is that of llama.cpp's reference quantisers, in float32, so that the weights equal
those of its files. Shape suffixes: G groups, N weights of a group, R rows, C input columns.
"""

import torch
from torch import Tensor
from torch.nn import functional

from pruning.plan.bits import FORMATS, GROUP, BitsFormat

_E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)  # magnitudes of MXFP4's elements
_LARGEST_EXPONENT = 2  # of them


def quantised(weights_RC: Tensor, bits: str) -> Tensor:
    """The weights after rounding to a format, of the same shape and dtype; 32 columns a group."""
    rows, columns = weights_RC.shape
    padded_RC = functional.pad(weights_RC.float(), (0, -columns % GROUP), value=torch.nan)
    groups_GN = padded_RC.reshape(-1, GROUP)
    # A last group may be shorter: what it lacks takes no part, neither as zero nor as a minimum.
    lacking_GN = groups_GN.isnan()
    filled_GN = torch.where(lacking_GN, groups_GN[:, :1], groups_GN)
    rounded_GN = _ROUNDED[FORMATS[bits].rule](filled_GN, FORMATS[bits])
    return rounded_GN.reshape(rows, -1)[:, :columns].to(weights_RC.dtype)


def _inverse(scale_G1: Tensor) -> Tensor:
    return torch.where(scale_G1 != 0, 1 / scale_G1, 0.0)


def _nearest(groups_GN: Tensor, form: BitsFormat) -> Tensor:
    """Symmetric around 0; halves are rounded away from it. Q8_0."""
    most = 2 ** (form.bits - 1) - 1
    scale_G1 = groups_GN.abs().amax(1, keepdim=True) / most
    exact_GN = groups_GN * _inverse(scale_G1)
    whole_GN = exact_GN.abs().floor()
    whole_GN += (2 * (exact_GN.abs() - whole_GN)).floor()
    rounded_GN: Tensor = whole_GN * exact_GN.sign() * scale_G1.half().float()
    return rounded_GN


def _signed(groups_GN: Tensor, form: BitsFormat) -> Tensor:
    """The weight of largest magnitude, the first of several, is the most negative code. Q4_0."""
    half = 2 ** (form.bits - 1)
    # argmax may give any of several equal ones.
    is_most_GN = groups_GN.abs() == groups_GN.abs().amax(1, keepdim=True)
    first_G1 = is_most_GN.to(torch.uint8).argmax(1, keepdim=True)
    scale_G1 = groups_GN.gather(1, first_G1) / -half
    # One rounding for product and sum, as a fused multiplication and addition has.
    codes_GN = groups_GN.double() * _inverse(scale_G1).double() + (half + 0.5)
    codes_GN = codes_GN.float().trunc().clamp(0, 2 * half - 1)
    rounded_GN: Tensor = (codes_GN - half) * scale_G1.half().float()
    return rounded_GN


def _minimum(groups_GN: Tensor, form: BitsFormat) -> Tensor:
    """Codes count up from the smallest weight of the group; Q4_1's rule with fewer bits."""
    most = 2**form.bits - 1
    least_G1 = groups_GN.amin(1, keepdim=True)
    scale_G1 = (groups_GN.amax(1, keepdim=True) - least_G1) / most
    codes_GN = ((groups_GN - least_G1) * _inverse(scale_G1) + 0.5).trunc().clamp(0, most)
    rounded_GN: Tensor = codes_GN * scale_G1.half().float() + least_G1.half().float()
    return rounded_GN


def _mxfp4(groups_GN: Tensor, _form: BitsFormat) -> Tensor:
    """A power of two a group, elements E2M1; ties go to the smaller one, as in llama.cpp."""
    largest_G1 = groups_GN.abs().amax(1, keepdim=True)
    _, exponent_G1 = torch.frexp(largest_G1)  # largest = mantissa in [0.5, 1) times 2 ** exponent
    scale_G1 = torch.ldexp(torch.ones_like(largest_G1), exponent_G1 - 1 - _LARGEST_EXPONENT)
    values = torch.tensor(_E2M1, device=groups_GN.device)
    middles = (values[1:] + values[:-1]) / 2
    sizes_GN = (groups_GN.abs() / scale_G1).contiguous()
    return values[torch.bucketize(sizes_GN, middles)] * groups_GN.sign() * scale_G1


_ROUNDED = {"nearest": _nearest, "signed": _signed, "minimum": _minimum, "mxfp4": _mxfp4}
