"""Requests to measure hidden states: under plans, and under criteria at sparsities."""

from collections.abc import Sequence
from typing import Any

from pydantic import model_validator

from analysis.stats.tables import Gate
from pruning.requests.base import Text, command_line, option_words, repeated
from pruning.requests.evaluation import MeasureRequest, SweepRequest, check_named


class VarianceRequest(MeasureRequest):
    """A model and a text; plans, criteria at sparsities, or both. The full model always.

    Args:
        plans: each the content of a plan.json.
        names: of the plans, for the table.
        criteria, sparsities, calibrated_on, gate: every combination, as of a sweep.
    """

    plans: tuple[dict[str, Any], ...] = ()
    names: tuple[str, ...] = ()
    criteria: tuple[Text, ...] = ()
    sparsities: tuple[str, ...] = ()
    calibrated_on: tuple[Text, ...] = ()
    gate: Gate = "applied"

    @model_validator(mode="after")
    def _fits_together(self) -> "VarianceRequest":
        check_named(self.plans, self.names)
        if bool(self.criteria) != bool(self.sparsities):
            raise ValueError("--criterion and --sparsity belong together")
        _ = self.sweep  # says what is wrong with it
        return self

    @property
    def sweep(self) -> SweepRequest | None:
        """The criteria at their sparsities; None where there are none.

        Raises:
            ValueError: unknown criteria, or sparsities that are none.
        """
        if not self.criteria:
            return None
        shared = ("model", "corpora", "stats_dir", "criteria", "sparsities", "calibrated_on")
        return SweepRequest(**{name: getattr(self, name) for name in (*shared, "gate")})

    def command(self, plans: Sequence[str] = ("plan.json",), out: str = "variance.csv") -> str:
        """The equivalent command line; `plans` names the files that hold the plans."""
        words = repeated("--plan", plans[: len(self.plans)])
        for option, values in (("--criterion", self.criteria), ("--sparsity", self.sparsities)):
            words += repeated(option, values)
        words += repeated("--corpus", self.corpora)
        own = option_words(self, "model", "corpora", "plans", "names", "criteria", "sparsities")
        return command_line("variance", self.model, *words, *own, "-o", out)
