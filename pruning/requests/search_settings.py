"""Settings of a search; the defaults are the paper's."""

from typing import Any, Literal

from pydantic import Field, ValidationInfo, field_validator

from pruning.spec import options
from pruning.spec.base import Request


class SearchSettings(Request):
    """How the evolution runs (arXiv:2603.06003, section 4.1 and Algorithm 1)."""

    # P, candidates per generation.
    population: int = Field(default=32, ge=2, le=10**5, strict=True)
    # m, the best of them: they stay, and are the parents of the next generation.
    elites: int = Field(default=4, ge=1, le=10**5, strict=True)
    generations: int = Field(default=50, ge=1, le=10**5, strict=True)  # T, after the initial one
    # Delta_max, the most that a switch moves between two layers.
    max_transfer: int = Field(default=4, ge=1, le=10**5, strict=True)
    # tau_max, the most switches between parent and child.
    max_steps: int = Field(default=3, ge=1, le=10**3, strict=True)
    seed: options.Seed = options.DEFAULT_SEED  # of the evolution, not of the samples
    # The initial population: from schedules, as in the paper, or also from measured sensitivity.
    # Stated, not chosen by what is stored, so that a resumed search starts as it did.
    start: Literal["schedules", "measured"] = "schedules"

    @field_validator("elites")
    @classmethod
    def _leave_room(cls, value: int, info: ValidationInfo) -> int:
        if value >= info.data.get("population", value + 1):
            raise ValueError("a population needs room for children: fewer elites than candidates")
        return value

    def to_dict(self) -> dict[str, Any]:
        """The settings of the evolution alone, as plain JSON."""
        settings = self.model_dump(include=set(SearchSettings.model_fields))
        if self.start == "schedules":
            del settings["start"]  # older searches have no such key
        return settings
