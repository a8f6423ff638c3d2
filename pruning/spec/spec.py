"""PlanSpec: all that a person asks of a plan, in one form.

Its sections say what ranks, how much goes, how that is spread over the layers, and what a plan must
respect. The command line and Python name the fields without their sections; a recipe contains them;
plans, searches and measurements record them. Every rule on how they go together stands here, once.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from fractions import Fraction
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

from pydantic import BeforeValidator, Field, model_validator

from analysis.corpora.spec import CorpusWeight, corpus_weight_text, parse_corpus_weight
from analysis.criteria import Criterion, check_ranks, get_criterion
from analysis.errors import PlanError, UserError
from analysis.numbers.sparsity import parse_sparsity
from pruning.option import Option, as_value_errors, checked, checked_by
from pruning.plan.budget import SizeTarget
from pruning.plan.constraints import Constraints, Limits, Parallel, check_apart, parse_parallel
from pruning.plan.dividing import divided
from pruning.plan.plan import EXPERT_GRANULARITY, NEURON_GRANULARITY
from pruning.plan.units import NeuronScope, parse_scope
from pruning.plan.widths import DEFAULT_MULTIPLE, WidthChoice, WidthMode
from pruning.schedules import MEASURED, SCHEDULES
from pruning.spec import options, plan_options
from pruning.spec.base import (
    Section,
    default_of,
    flat_fields,
    flat_values,
    option_of,
    validated,
    value_of,
    value_words,
    written,
)

if TYPE_CHECKING:
    from analysis.model.moe_model import MoEModel

FREQUENCY: Final = "frequency"
BUDGETS: Final = ("shrink", "sparsity", "remove", "target_size", "params_share")
_TARGETS: Final[Mapping[str, Literal["size", "shrink", "params"]]] = {
    "shrink": "shrink",
    "target_size": "size",
    "params_share": "params",
}


class Misfit(ValueError):
    """Fields that do not go together; `field` is the one to change."""

    def __init__(self, field: str, reason: str) -> None:
        super().__init__(reason)
        self.field = field


def given(section: Section, names: Iterable[str]) -> list[str]:
    """Those of these fields that are not at their defaults."""
    fields = flat_fields(type(section))
    return [name for name in names if getattr(section, name) != default_of(fields[name])]


def listed(names: Iterable[str]) -> str:
    """Names as in a sentence: a, b or c."""
    *most, last = names
    return f"{', '.join(most)} or {last}" if most else last


def _corpus(value: Any) -> Any:
    """A corpus as the command line takes it, also from a mapping `corpus, weight`."""
    if isinstance(value, Mapping):
        if "corpus" not in value or not value.keys() <= {"corpus", "weight"}:
            raise ValueError("give the keys corpus and weight, or CORPUS:WEIGHT")
        weight = value.get("weight", 1.0)
        if isinstance(weight, bool) or not isinstance(weight, int | float) or not weight > 0:
            raise ValueError(f"the weight {weight!r} is no number above 0")
        return corpus_weight_text(str(value["corpus"]), float(weight))
    if isinstance(value, str) and value:
        part = checked(parse_corpus_weight)(value)
        return corpus_weight_text(part.corpus, part.weight)
    return value


class RankingSpec(Section):
    """What ranks the experts or neurons, and by which statistics."""

    # Empty only where nothing ranks: counts and sizes alone, or the constant variant (1, 0, 0).
    criterion: Annotated[
        str,
        Field(max_length=4096),
        checked_by(lambda name: name and get_criterion(name)),
        Option("Name, such as reap or aimer, or exponents b,alpha,beta.", ("--criterion",)),
    ] = ""
    granularity: options.Granularity = "expert"
    corpora: tuple[Annotated[options.CalibratedOn, BeforeValidator(_corpus)], ...] = ()
    runs: tuple[options.Run, ...] = ()
    gate: options.Gate = "applied"

    @property
    def by_neuron(self) -> bool:
        """Whether neurons are removed, and not only whole experts."""
        return self.granularity == NEURON_GRANULARITY

    @property
    def rule(self) -> Criterion:
        """The criterion."""
        return get_criterion(self.criterion)

    @property
    def reads_text(self) -> bool:
        """Whether calibration text ranks."""
        return self.rule.source == "routed"


class BudgetSpec(Section):
    """How much goes: a sparsity, a number, a size, or a share of the bytes or parameters."""

    sparsity: plan_options.Sparsity | None = None
    shrink: plan_options.Shrink | None = None
    target_size: plan_options.TargetSize | None = None
    target_dtype: plan_options.TargetDtype = "own"
    params_share: plan_options.ParamsShare | None = None
    remove: plan_options.Remove | None = None
    uneven: plan_options.Uneven = False
    # Less work per token; bytes stay.
    top_k: plan_options.TopK | None = None
    mean_top_k: Annotated[plan_options.MeanTopK, Option(heading="Budget")] | None = None
    # How an export stores widths, which a target counts.
    width_mode: plan_options.WidthMode = "uniform"
    width_multiple_of: plan_options.WidthMultipleOf = DEFAULT_MULTIPLE

    @property
    def amounts(self) -> dict[str, Any]:
        """Those of BUDGETS that are given."""
        values = {name: getattr(self, name) for name in BUDGETS}
        return {name: value for name, value in values.items() if value is not None}

    @property
    def fraction(self) -> Fraction:
        """The sparsity as an exact number; 0 for another budget."""
        return parse_sparsity(self.sparsity or "0")

    @property
    def size_target(self) -> SizeTarget | None:
        """How small the weights must become; None if the budget counts experts or neurons."""
        for name, kind in _TARGETS.items():
            if amount := getattr(self, name):
                return SizeTarget(kind, amount, self.target_dtype)
        return None

    @property
    def widths(self) -> WidthChoice:
        """How an export stores widths."""
        return WidthChoice(WidthMode(self.width_mode), self.width_multiple_of)


class SpreadSpec(Section):
    """How the budget is spread over the layers, and of neurons also within them."""

    schedule: plan_options.Schedule = "uniform"
    schedule_file: plan_options.ScheduleFile | None = None
    kept_experts: plan_options.KeptExperts | None = None
    kept_neurons: plan_options.KeptNeurons | None = None
    measured_on: tuple[plan_options.MeasuredOn, ...] = ()
    cost: plan_options.Cost = "esap"
    across: plan_options.Across = "mean"
    neuron_scope: plan_options.NeuronScope = str(NeuronScope.EXPERT)
    lock: plan_options.Lock = ()

    @model_validator(mode="before")
    @classmethod
    def _a_file_is_a_schedule(cls, values: Any) -> Any:
        if isinstance(values, dict) and values.get("schedule_file") and "schedule" not in values:
            return {**values, "schedule": "file"}
        return values

    def model_post_init(self, context: Any, /) -> None:
        """Check the rules on what goes together."""
        name = written(context, SpreadSpec)
        if (self.schedule == "file") != (self.schedule_file is not None):
            file = name("schedule_file", "FILE")
            raise Misfit("schedule_file", f"{name('schedule', 'file')} and {file} belong together")

    @property
    def is_measured(self) -> bool:
        """Whether the sensitivity of layers spreads the budget."""
        return self.schedule == MEASURED

    @property
    def full_file(self) -> str:
        """The field whose file names all that stays; empty if something ranks and spreads."""
        names = ("kept_experts", "kept_neurons")
        return next((name for name in names if getattr(self, name) is not None), "")

    @property
    def scope(self) -> NeuronScope:
        """Among which neurons the budget is spent; curves are per layer."""
        return NeuronScope.LAYER if self.is_measured else parse_scope(self.neuron_scope)


class LimitsSpec(Limits, Section):
    """What a plan must respect besides its budget."""

    def model_post_init(self, context: Any, /) -> None:
        """Check the rules on what goes together."""
        with as_value_errors():
            check_apart(self.pin, self.drop)


class PlanSpec(Section):
    """What ranks, how much goes, how it is spread over the layers, what must be respected."""

    ranking: RankingSpec = RankingSpec()
    budget: BudgetSpec = BudgetSpec()
    spread: SpreadSpec = SpreadSpec()
    limits: LimitsSpec = LimitsSpec()

    def model_post_init(self, context: Any, /) -> None:
        """Check the rules on what goes together: once, and not again where a request holds it."""
        name = written(context, PlanSpec)
        (self._check_neurons if self.by_neuron else self._check_experts)(name)
        self._check_measured(name, given(self.spread, ("measured_on", "cost", "across")))
        if file := self.spread.full_file:
            self._check_file(file, name)
            return
        if self.ranking.criterion:
            with as_value_errors():
                check_ranks(self.ranking.rule, self.ranking.granularity)
        amounts = list(self.budget.amounts)
        needed = 0 if self.spread.schedule_file or self.keeps_all else 1
        if len(amounts) > 1 or len(amounts) < needed:
            raise Misfit(
                amounts[-1] if amounts else "budget",
                f"give one budget: {listed(map(name, BUDGETS))}"
                + (", not several" if amounts else f"; or {name(self._file())}, which has its own"),
            )
        limits = given(self.limits, LimitsSpec.model_fields)
        if self.keeps_all and limits:
            raise Misfit(
                limits[0],
                f"{name('mean_top_k')} alone keeps all experts; give a budget as well "
                f"({listed(map(name, BUDGETS))}), or leave {name(limits[0])} out",
            )
        if self.budget.uneven and self.budget.size_target is None:
            raise Misfit("uneven", f"{name('uneven')} goes with {listed(map(name, _TARGETS))}")

    def _check_measured(self, name: Callable[..., str], extra: Sequence[str]) -> None:
        """One reader of sensitivities: the mean of experts per token, or the schedule.

        `extra` are the fields that are given and that only this schedule has.
        """
        if self.budget.mean_top_k is not None:
            if self.budget.top_k is not None:
                raise Misfit("top_k", f"give {name('top_k')} or {name('mean_top_k')}, not both")
            return
        if extra and not self.spread.is_measured:
            raise Misfit(
                extra[0],
                f"{name(extra[0])} is for {name('schedule', MEASURED)}; add it, or leave it out",
            )

    def _check_experts(self, name: Callable[..., str]) -> None:
        for place, field, usual in _fields_of(NEURON_GRANULARITY):
            if getattr(getattr(self, place), field) != usual:
                raise Misfit(
                    field,
                    f"{name(field)} is for plans of neurons; add "
                    f"{name('granularity', NEURON_GRANULARITY)}, or leave it out",
                )

    def _check_neurons(self, name: Callable[..., str]) -> None:
        spread = self.spread
        for place, field, usual in _fields_of(EXPERT_GRANULARITY):
            value = getattr(getattr(self, place), field)
            if value != usual and (field, value) != ("schedule", MEASURED):
                kinds = (
                    *("neuron_scope", "protect", "pin", "drop", "keep_super", "floor"),
                    *("multiple_of", "serve_on"),
                )
                raise Misfit(
                    field,
                    f"{name(field)} is for plans of whole experts; a plan of neurons takes "
                    f"{name('schedule', MEASURED)}, {listed(map(name, kinds))}",
                )
        if spread.is_measured and given(spread, ["neuron_scope"]):
            raise Misfit(
                "neuron_scope",
                f"with {name('schedule', MEASURED)} neurons compete within layers; leave "
                f"{name('neuron_scope')} out",
            )
        if self.limits.keep_super and not self.ranking.reads_text:
            raise Misfit(
                "keep_super",
                f"{self.ranking.rule.label} reads no calibration, which tells super experts; "
                f"leave {name('keep_super')} out, or name them with {name('pin')}",
            )
        within_layers = bool(self.ranking.criterion) and self.ranking.rule.within_layers
        if within_layers and spread.scope is NeuronScope.GLOBAL:
            raise Misfit(
                "neuron_scope",
                f"{self.ranking.rule.label} does not compare neurons of different layers; give "
                f"{name('neuron_scope')} layer or expert",
            )

    def _check_file(self, file: str, name: Callable[..., str]) -> None:
        """A file that names the kept experts or neurons says all."""
        ranked = ("criterion",) if file == "kept_experts" else ()
        extra = [*self.budget.amounts, *given(self.ranking, (*ranked, "corpora", "runs"))]
        extra += given(self.limits, LimitsSpec.model_fields)
        if file == "kept_experts":
            extra += given(self.spread, ("schedule_file", "schedule", "lock"))
            extra += given(self.budget, ["uneven"])
        if extra:
            raise Misfit(extra[0], f"{name(file)} says all that stays; leave {name(extra[0])} out")

    def _file(self) -> str:
        return "kept_neurons" if self.by_neuron else "schedule_file"

    @property
    def keeps_all(self) -> bool:
        """Whether no expert goes: there is only a mean of experts per token."""
        is_alone = self.budget.mean_top_k is not None and not self.budget.amounts
        return is_alone and not (self.spread.schedule_file or self.spread.full_file)

    @property
    def by_neuron(self) -> bool:
        """Whether neurons are removed, and not only whole experts."""
        return self.ranking.by_neuron

    @property
    def is_even(self) -> bool:
        """Whether all layers keep one number of experts to meet a target."""
        return not self.budget.uneven and self.spread.schedule == "uniform"

    @property
    def leaves_layers_alike(self) -> bool:
        """Whether all layers keep one number of experts: as `is_even`, and none is named."""
        named = self.limits.protect or self.limits.set
        return self.is_even and not named and self.spread.kept_experts is None

    @property
    def corpus_weights(self) -> tuple[CorpusWeight, ...]:
        """The corpora that rank, with their weights in the blend."""
        return tuple(map(parse_corpus_weight, self.ranking.corpora))

    def constraints_for(self, model: "MoEModel") -> Constraints:
        """What schedules must respect; a PlanError for processes that cannot divide the model."""
        limits = self.limits.constraints(self.spread.lock)
        if (parallel := self.parallel) is None:
            return limits
        neurons = self.budget.width_multiple_of if self.by_neuron else 0
        return divided(limits, parallel, model, neurons=neurons)

    @property
    def parallel(self) -> Parallel | None:
        """The processes that will serve it, if they were named."""
        return parse_parallel(self.limits.serve_on) if self.limits.serve_on else None

    @property
    def reads_text(self) -> bool:
        """Whether calibration text ranks, spreads the budget, or tells what must stay."""
        if self.spread.full_file or self.keeps_all:
            return False
        by_tokens = SCHEDULES[self.spread.schedule].reads_tokens or self.limits.keep_super
        return by_tokens or self.ranking.reads_text

    def changed(self, **values: Any) -> "PlanSpec":
        """The same with other values of these fields, and their rules checked again."""
        sections: dict[str, Any] = {name: getattr(self, name) for name in PlanSpec.model_fields}
        for place, section in sections.items():
            fields = type(section).model_fields
            if more := {name: values.pop(name) for name in fields.keys() & values.keys()}:
                sections[place] = flat_values(section) | more
        return validated(PlanSpec, sections | values)

    @classmethod
    def recorded(cls, raw: Mapping[str, Any]) -> "PlanSpec":
        """What a plan file says was asked for; a PlanError if a person or another version did."""
        try:
            return validated(cls, dict(raw), None)
        except UserError as error:
            raise PlanError(
                f"The plan's 'spec', what was asked for, cannot be read: {error}"
            ) from error

    def differences(self, other: "PlanSpec") -> dict[str, list[str]]:
        """Field -> its words, of those that are given here and differ from another spec's."""
        fields, others = flat_fields(PlanSpec), other._values()
        return {
            name: value_words(fields[name], value)
            for name, value in self._values().items()
            if value is not None and value != others[name]
        }

    def _values(self) -> dict[str, Any]:
        sections = (getattr(self, name) for name in PlanSpec.model_fields)
        return {name: value for section in sections for name, value in section}

    def to_json(self) -> dict[str, Any]:
        """Plain JSON without defaults, which `PlanSpec.model_validate` reads."""
        plain: dict[str, Any] = self.model_dump(mode="json", exclude_defaults=True)
        return plain


@cache
def _fields_of(granularity: str) -> Sequence[tuple[str, str, Any]]:
    """Section, name and default of the fields that only plans of one granularity have."""
    return [
        (place, name, default_of(field))
        for place, section in PlanSpec.model_fields.items()
        for name, field in flat_fields(section.annotation).items()  # type: ignore[arg-type]
        if (option := option_of(field)) and option.of == granularity
    ]


def spec_of(**values: Any) -> PlanSpec:
    """A spec from its fields, named without their sections."""
    return validated(PlanSpec, values)


def spec_of_words(words: Mapping[str, Sequence[str]], usual: PlanSpec) -> PlanSpec:
    """The spec that differs from the usual one in these fields; see `PlanSpec.differences`."""
    fields, values = flat_fields(PlanSpec), flat_values(usual)
    if not words.keys().isdisjoint(BUDGETS):
        values = {name: value for name, value in values.items() if name not in BUDGETS}
    given_values = {name: value_of(fields[name], word) for name, word in words.items()}
    return validated(PlanSpec, values | given_values, context=None)
