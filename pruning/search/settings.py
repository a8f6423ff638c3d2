"""Settings of a search; the defaults are the paper's."""

from dataclasses import asdict, dataclass
from typing import Any

from analysis.errors import PlanError


@dataclass(frozen=True, slots=True)
class SearchSettings:
    """How the evolution runs (arXiv:2603.06003, section 4.1 and Algorithm 1).

    Args:
        population: P, candidates of a generation.
        elites: m, the best of them, which are the parents of the next and stay in it.
        generations: T, after the initial one.
        max_transfer: Delta_max, the most that one switch moves between two layers.
        max_steps: tau_max, the most switches between parent and child.
        seed: of all draws.
        racing: confidence with which a candidate must be worse than the last elite on the samples
            so far to be given up; None: every candidate sees all samples, as in the paper.
    """

    population: int = 32
    elites: int = 4
    generations: int = 50
    max_transfer: int = 4
    max_steps: int = 3
    seed: int = 42
    racing: float | None = None

    def __post_init__(self) -> None:
        counts = (self.population, self.elites, self.generations, self.max_transfer, self.max_steps)
        if min(counts) < 1:
            raise PlanError("A search needs positive numbers; see the key search of the recipe.")
        if self.elites >= self.population:
            raise PlanError(
                f"A population of {self.population} with {self.elites} elites leaves no room for "
                f"children; at most {self.population - 1} elites work."
            )
        if self.racing is not None and not 0.5 < self.racing < 1:
            raise PlanError(
                f"Racing with confidence {self.racing} makes no sense; give one above 0.5 and "
                "below 1, such as 0.99."
            )

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON."""
        return asdict(self)
