"""Sparsity: the fraction of experts removed, as an exact decimal, and the rounding rule."""

from decimal import ROUND_CEILING, Context, Decimal, InvalidOperation
from fractions import Fraction

from analysis.errors import PlanError

_DIGITS = 100


def parse_sparsity(text: str | Fraction) -> Fraction:
    """Exact sparsity from text such as "0.5" or "50%"."""
    if isinstance(text, Fraction):
        value = text
    else:
        percent = text.strip().endswith("%")
        try:
            number = Decimal(text.strip().removesuffix("%"))
        except InvalidOperation as error:
            raise PlanError(
                f"The share {text!r} is not a number; write a fraction such as 0.5, or 50%."
            ) from error
        # Without a limit 1e-999999999 would become a gigabyte of zeros.
        if not number.is_finite() or not -_DIGITS < number.adjusted() < _DIGITS:
            raise PlanError(f"The share {text!r} is not a number between 0 and 1.")
        value = Fraction(number) / (100 if percent else 1)
    if not 0 <= value < 1:
        raise PlanError(
            f"The share {str(text)!r} is out of range; give a fraction from 0 up to but not "
            "including 1 (write 50% or 0.5 for one half)."
        )
    return value


def num_removed(num_experts: int, sparsity: Fraction) -> int:
    """floor(sparsity * num_experts), exactly.

    The number removed is rounded, not the number kept; floating point would remove one expert too
    many for 60 experts at 0.55.
    """
    return num_experts * sparsity.numerator // sparsity.denominator


def as_percent(number: int, size: int) -> str:
    """A share as a percentage of at least four digits, rounded up.

    So `num_removed` gives the number back: 1 of 3 rounded to 33.33% would remove none.
    """
    digits = Context(prec=max(4, len(str(size)) + 1), rounding=ROUND_CEILING)
    return f"{digits.divide(Decimal(100 * number), Decimal(size)).normalize():f}%"
