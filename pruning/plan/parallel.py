"""Over how many processes an engine spreads a model, as a person writes it: tp=8,ep=8."""

from dataclasses import dataclass

from analysis.errors import PlanError
from pruning.plan.layer_words import MOST_DIGITS


@dataclass(frozen=True, slots=True)
class Parallel:
    """Over how many processes an engine spreads a model."""

    tp: int = 1  # tensor parallel: heads and widths are divided
    ep: int = 1  # expert parallel: experts are divided

    @property
    def slices(self) -> int:
        """Into how many slices the width of a routed expert is cut."""
        return max(1, self.tp // self.ep)

    def __str__(self) -> str:
        return f"tp={self.tp},ep={self.ep}"


def parse_parallel(text: str) -> Parallel:
    """Processes from text such as "tp=8,ep=8"; either may be left out."""
    sizes: dict[str, int] = {}
    for part in text.split(","):
        name, equals, number = (word.strip() for word in part.partition("="))
        is_count = number.isascii() and number.isdigit() and len(number) <= MOST_DIGITS
        if name not in ("tp", "ep") or not equals or not is_count or not int(number):
            raise PlanError(f"{part.strip()!r} is no number of processes; write tp=8,ep=8.")
        if name in sizes:
            raise PlanError(f"{text!r} gives {name} twice.")
        sizes[name] = int(number)
    return Parallel(**sizes)
