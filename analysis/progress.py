"""Progress of long tasks: generators yield it, the command line and jobs show it."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Progress:
    """One step of a long task."""

    phase: str  # "calibrating", "writing", ...
    done: int  # units finished, 0 <= done <= total
    total: int  # 0 if unknown
    unit: str = ""  # "tokens", "bytes", "shards", ...
    note: str = ""  # one line for the log

    def __str__(self) -> str:
        count = f"{self.done:,} of {self.total:,} {self.unit}" if self.total else ""
        return " ".join(filter(None, (self.phase, count.strip(), self.note)))

    @property
    def fraction(self) -> float:
        """Share finished, 0..1; 0 if the total is unknown."""
        return self.done / self.total if self.total else 0.0
