"""The request for a plan of experts or neurons."""

from collections.abc import Iterable, Mapping
from fractions import Fraction
from typing import Annotated, Any, Literal

from pydantic import model_validator

from analysis.criteria import check_ranks, get_criterion
from analysis.errors import PlanError
from analysis.sparsity import parse_sparsity
from pruning.budget import SizeTarget
from pruning.constraints import Constraints, parse_counts, parse_experts, parse_numbers
from pruning.neurons.selection import NeuronScope, parse_scope
from pruning.neurons.widths import DEFAULT_MULTIPLE, WidthChoice, WidthMode
from pruning.plan import NEURON_GRANULARITY
from pruning.requests import options
from pruning.requests.base import Option, flags_of, option_words
from pruning.requests.ranking import ConstrainedRequest, RankRequest
from pruning.schedules import MEASURED, get_schedule

BUDGETS = ("shrink", "sparsity", "remove", "target_size", "params_share")
# Fields of plans of one granularity, and of the schedule that reads sensitivity.
_OF_EXPERTS = ("schedule_file", "schedule", "layer_set", "lock", "uneven")
_OF_NEURONS = ("neuron_scope", "kept_neurons", "width_mode", "width_multiple_of")
_OF_SENSITIVITY = ("measured_on", "cost", "across")
# What chooses experts, and not how many.
_OF_CHOICE = ("criterion", "corpora", "runs", "gate", "stats_dir", "granularity", "kept_neurons")
# What goes without saying if a file names the kept neurons.
_OF_FILE = (*BUDGETS, "corpora", "runs", "multiple_of", "floor", "protect", "pin", "drop")
_BUDGET_OPTIONS = "--shrink, --sparsity, --target-size, --params-share or --remove"
_TARGETS: Mapping[str, Literal["size", "shrink", "params"]] = {
    "shrink": "shrink",
    "target_size": "size",
    "params_share": "params",
}


class PlanRequest(ConstrainedRequest, RankRequest):
    """A criterion, the statistics that it reads, and how much to remove.

    With granularity neuron, budgets count neurons. With `kept_neurons`, a file that names the kept
    neurons, `criterion` only says how it was made. With `config_only` nothing ranks, so the request
    is for counts and sizes.
    """

    asked_by = "plan"
    writes = "plan.json"
    criterion: Annotated[
        options.Criterion,
        Option(
            "Name, such as reap or aimer, or exponents b,alpha,beta; required unless --config-only."
        ),
    ] = ""
    config_only: Annotated[
        options.ConfigOnly,
        Option(
            "Only show counts and sizes, from config.json and the headers of a hub model; needs no "
            "weights, writes no plan."
        ),
    ] = False
    granularity: options.Granularity = "expert"
    sparsity: options.Sparsity = ""
    shrink: options.Shrink | None = None
    target_size: options.TargetSize | None = None
    target_dtype: options.TargetDtype = "own"
    params_share: options.ParamsShare | None = None
    remove: options.Remove | None = None
    uneven: options.Uneven = False
    width_mode: options.WidthMode = "uniform"
    width_multiple_of: options.WidthMultipleOf = DEFAULT_MULTIPLE
    neuron_scope: options.NeuronScope = str(NeuronScope.EXPERT)
    kept_neurons: options.KeptNeurons | None = None
    schedule: options.Schedule = "uniform"
    schedule_file: options.ScheduleFile | None = None
    measured_on: tuple[options.MeasuredOn, ...] = ()
    cost: options.Cost = "esap"
    across: options.Across = "mean"
    lock: tuple[options.Lock, ...] = ()

    @model_validator(mode="before")
    @classmethod
    def _a_file_is_a_schedule(cls, values: Any) -> Any:
        if isinstance(values, dict) and values.get("schedule_file") and "schedule" not in values:
            return {**values, "schedule": "file"}
        return values

    @model_validator(mode="after")
    def _fits_together(self) -> "PlanRequest":
        if self.config_only:
            self._check_counts()
        elif not self.criterion:
            raise PlanError(
                "`moeprune plan` needs --criterion: a name such as reap or aimer, or exponents "
                "b,alpha,beta; counts and sizes alone need none with --config-only."
            )
        if self.by_neuron:
            self._check_neurons()
        else:
            self._check_experts()
        if not self.is_measured and (unfit := self._given(_OF_SENSITIVITY)):
            raise PlanError(f"{unfit[0]} is for --schedule {MEASURED}; add it, or leave it out.")
        _ = self.constraints  # validates them
        return self

    def _given(self, names: Iterable[str]) -> list[str]:
        """The options of those of these fields that are given."""
        fields = type(self).model_fields
        given = (name for name in names if getattr(self, name) != fields[name].default)
        return [flags_of(name, fields[name])[0] for name in given]

    def _check_counts(self) -> None:
        unfit = self._given(_OF_CHOICE)
        if not get_schedule(self.schedule).needs <= {"counts"}:
            unfit.append(f"--schedule {self.schedule}")
        if unfit:
            raise PlanError(
                f"{unfit[0]} chooses experts by statistics or weights, which --config-only does "
                "not read; leave it out for counts and sizes, or leave --config-only out."
            )

    def _check_experts(self) -> None:
        if unfit := self._given(_OF_NEURONS):
            raise PlanError(
                f"{unfit[0]} is for plans of neurons; add --granularity {NEURON_GRANULARITY}, or "
                "leave it out."
            )
        if not self.config_only:
            check_ranks(get_criterion(self.criterion), "expert")
        budgets = len(self.budget)
        if budgets > 1 or (budgets == 0 and self.schedule_file is None):
            raise PlanError(
                f"Give one budget: {_BUDGET_OPTIONS}"
                + (", not several." if budgets else "; or --schedule-file, which has its own.")
            )
        if self.uneven and self.size_target is None:
            raise PlanError("--uneven goes with --shrink, --target-size or --params-share.")
        if (self.schedule == "file") != (self.schedule_file is not None):
            raise PlanError("--schedule file and --schedule-file FILE belong together.")

    @property
    def budget(self) -> dict[str, Any]:
        """Those of BUDGETS that are given."""
        given = {name: getattr(self, name) for name in BUDGETS}
        return {name: value for name, value in given.items() if value not in (None, "")}

    @property
    def size_target(self) -> SizeTarget | None:
        """How small the weights must become; None if the budget counts experts or neurons."""
        for name, kind in _TARGETS.items():
            if asked := getattr(self, name):
                return SizeTarget(kind, asked, self.target_dtype)
        return None

    @property
    def is_even(self) -> bool:
        """Whether all layers keep one number of experts to meet a target."""
        return not self.uneven and self.schedule == "uniform"

    def _check_neurons(self) -> None:
        unfit = self._given(_OF_EXPERTS)
        if unfit and not (unfit == ["--schedule"] and self.is_measured):
            raise PlanError(
                f"{unfit[0]} is for plans of whole experts; a plan of neurons takes "
                f"--neuron-scope, --schedule {MEASURED}, --protect, --pin, --drop, --floor and "
                "--multiple-of, or --kept-neurons."
            )
        if self.is_measured and self._given(("neuron_scope",)):
            raise PlanError(
                f"With --schedule {MEASURED} neurons compete within layers; leave --neuron-scope "
                "out."
            )
        if self.kept_neurons is not None:
            if unfit := self._given(_OF_FILE):
                named = "a budget" if self.budget else unfit[0]
                raise PlanError(
                    f"A file with --kept-neurons says all that stays; leave {named} out."
                )
            return
        if len(self.budget) != 1:
            raise PlanError(
                f"A plan of neurons needs {_BUDGET_OPTIONS}, or a file with --kept-neurons"
                + ("; not several of them." if self.budget else ".")
            )
        scope, criterion = self.scope, get_criterion(self.criterion)
        check_ranks(criterion, "neuron")
        if criterion.source != "routed" and (self.corpora or self.runs):
            raise PlanError(f"{self.criterion} needs no calibration; leave --corpus and --run out.")
        if scope is NeuronScope.GLOBAL and criterion.within_layers:
            raise PlanError(
                f"{criterion.label} does not compare neurons of different layers; use "
                "--neuron-scope layer or expert."
            )

    @property
    def by_neuron(self) -> bool:
        """Whether neurons are removed, and not only whole experts."""
        return self.granularity == NEURON_GRANULARITY

    @property
    def fraction(self) -> Fraction:
        """The sparsity as an exact number."""
        return parse_sparsity(self.sparsity)

    @property
    def scope(self) -> NeuronScope:
        """Among which neurons the budget is spent; curves are per layer."""
        return NeuronScope.LAYER if self.is_measured else parse_scope(self.neuron_scope)

    @property
    def is_measured(self) -> bool:
        """Whether the sensitivity of layers spreads the budget."""
        return self.schedule == MEASURED

    @property
    def widths(self) -> WidthChoice:
        """How an export stores widths, which a target size counts."""
        return WidthChoice(WidthMode(self.width_mode), self.width_multiple_of)

    @property
    def constraints(self) -> Constraints:
        """What the plan must respect besides its budget."""
        return Constraints(
            multiple_of=self.multiple_of,
            protected=_layers_named(self.protect),
            pinned=parse_experts(self.pin),
            dropped=parse_experts(self.drop),
            fixed=parse_counts(self.layer_set),
            locked=_layers_named(self.lock),
            floor=self.floor,
        )

    def options(self) -> list[str]:
        """The options shared by `score`, `overlap` and `plan`, without defaults."""
        shared = ("granularity", "criterion", "corpora", "runs", "gate")
        return list(option_words(self, only=shared))


def _layers_named(texts: Iterable[str]) -> frozenset[int]:
    return frozenset[int]().union(*(parse_numbers(text, what="layers") for text in texts))
