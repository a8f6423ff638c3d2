"""Progress of long work: a value that generators yield and that command line and jobs show."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Progress:
    """One step of a long task."""

    phase: str  # what is being done, in words ("calibrating", "writing")
    done: int  # units finished, 0 <= done <= total
    total: int  # units in all; 0 when not known
    unit: str = ""  # what is counted ("tokens", "bytes", "shards")
    note: str = ""  # one line for the log; empty when there is nothing to say

    def __str__(self) -> str:
        count = f"{self.done:,} of {self.total:,} {self.unit}" if self.total else ""
        return " ".join(filter(None, (self.phase, count.strip(), self.note)))

    @property
    def fraction(self) -> float:
        """Share finished, 0..1; 0 when the total is not known."""
        return self.done / self.total if self.total else 0.0
