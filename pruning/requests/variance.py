"""Requests to measure hidden states: under plans, and under criteria at sparsities."""

from typing import Annotated, Any

from pydantic import model_validator

from pruning.requests import options
from pruning.requests.base import Option
from pruning.requests.evaluation import HeldOutRequest, OneCorpus, SweepRequest, check_named


class VarianceRequest(HeldOutRequest):
    """A model and a corpus; plans, criteria at sparsities, or both. The original model always."""

    asked_by = "variance"
    writes = "variance.csv"
    corpora: OneCorpus
    plans: tuple[dict[str, Any], ...] = ()  # each the content of a plan.json
    names: tuple[str, ...] = ()  # of the plans, for the table
    # Criteria, sparsities, calibrated_on, gate: every combination, as of a sweep.
    criteria: tuple[
        Annotated[options.Criterion, Option("Criterion to plan by as well; repeatable.")], ...
    ] = ()
    sparsities: tuple[
        Annotated[options.Sparsity, Option("Of the plans by criteria; repeatable.")], ...
    ] = ()
    calibrated_on: tuple[options.CalibratedOn, ...] = ()
    gate: options.Gate = "applied"

    @model_validator(mode="after")
    def _fits_together(self) -> "VarianceRequest":
        check_named(self.plans, self.names)
        if bool(self.criteria) != bool(self.sparsities):
            raise ValueError("--criterion and --sparsity belong together")
        _ = self.sweep  # says what is wrong with it
        return self

    @property
    def sweep(self) -> SweepRequest | None:
        """The criteria at their sparsities; None where there are none."""
        return self.into(SweepRequest) if self.criteria else None
