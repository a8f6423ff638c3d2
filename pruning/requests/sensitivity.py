"""Requests to measure sensitivity: what each layer's losses cost, in the order of a criterion."""

from typing import Annotated, Any

from pydantic import field_validator, model_validator

from analysis.criteria import check_ranks, get_criterion
from analysis.sparsity import parse_sparsity
from pruning.plan import ATOMIC_GRANULARITY
from pruning.requests import options
from pruning.requests.base import Option
from pruning.requests.evaluation import StreamableRequest
from pruning.schedules import MEASURED
from pruning.sensitivity.levels import DEFAULT_LEVELS

DEFAULT_SAMPLES = 32


class SensitivityRequest(StreamableRequest):
    """The curves of a criterion's order on one or more corpora, and the plans that they give."""

    asked_by = "sensitivity"
    criterion: options.Criterion
    calibrated_on: tuple[options.CalibratedOn, ...] = ()
    gate: options.Gate = "applied"
    granularity: options.Granularity = "expert"
    sparsities: tuple[
        Annotated[
            options.Sparsity,
            Option("Also measure the plan of this sparsity: 0.5 or 50%; repeatable."),
        ],
        ...,
    ] = ()
    samples: options.Samples = DEFAULT_SAMPLES
    levels: options.Levels = DEFAULT_LEVELS
    refine: options.Refine = 0
    cost: Annotated[
        options.Cost, Option("What plans of --sparsity spare: esap, kl, or nll (added loss).")
    ] = "esap"
    multiple_of: options.MultipleOf = 1
    floor: options.Floor = 0
    protect: tuple[options.Protect, ...] = ()
    pin: tuple[options.Pin, ...] = ()
    drop: tuple[options.Drop, ...] = ()
    layer_set: tuple[options.LayerSet, ...] = ()

    @field_validator("criterion")
    @classmethod
    def _usual_name(cls, value: str) -> str:
        return get_criterion(value).name

    @field_validator("sparsities")
    @classmethod
    def _in_order(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(sorted(dict.fromkeys(value), key=parse_sparsity))

    @model_validator(mode="after")
    def _fits_together(self) -> "SensitivityRequest":
        check_ranks(get_criterion(self.criterion), self.granularity)
        if self.refine and not self.sparsities:
            raise ValueError("--refine improves plans; name their --sparsity")
        if self.granularity == ATOMIC_GRANULARITY and self.layer_set:
            raise ValueError("layers cannot be set by hand in a plan of neurons; leave --set out")
        return self

    @property
    def planned(self) -> dict[str, Any]:
        """What its plans have besides criterion, corpora and budget."""
        names = ("cost", "multiple_of", "floor", "protect", "pin", "drop", "layer_set")
        return {"schedule": MEASURED, **{name: getattr(self, name) for name in names}}
