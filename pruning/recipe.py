"""Recipe: every choice from the model to the export, as one validated value."""

import hashlib
import json
from collections.abc import Sequence
from itertools import zip_longest
from typing import Annotated, Any, Literal

import yaml
from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    PlainSerializer,
    ValidationInfo,
    field_validator,
)

from analysis.criteria import check_ranks, get_criterion
from analysis.sparsity import parse_sparsity
from analysis.stats.choose import parse_corpus_weight
from analysis.stats.groups import parse_groups
from pruning.budget import parse_gib
from pruning.evaluate.result import parse_measures
from pruning.neurons.selection import NeuronScope, parse_scope
from pruning.neurons.widths import DEFAULT_MULTIPLE
from pruning.plan import NEURON_GRANULARITY
from pruning.requests import options
from pruning.requests.base import Request, checked, checked_by
from pruning.requests.calibration import CalibrateOptions
from pruning.requests.evaluation import SENSITIVITY_SAMPLES
from pruning.requests.model import ExportOptions
from pruning.requests.options import Text
from pruning.requests.plan import BUDGETS
from pruning.schedules import MEASURED
from pruning.search.settings import SearchSettings
from pruning.sensitivity.points import DEFAULT_LEVELS

FREQUENCY = "frequency"
_NOT_DECIDING = ("evaluate", "export")  # without effect on what is pruned
# Keys of `calibrate` that decide which tokens count; the others only how they are run.
_DECIDING = ("packing", "truncate", "count", "answers", "answer_tokens", "select", "clusters")

# Keys that were added later, by section, with their defaults: older recipes keep their digest.
_LATER: dict[str, dict[str, Any]] = {
    "": {"allow_test_set": False, "sensitivity": None},
    "budget": {"params_share": None, "shrink": None, "uneven": False},
    "schedule": {"measured_on": [], "cost": "esap", "across": "mean"},
    "search": {"start": "schedules"},
}


def _corpus_part(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    part = checked(parse_corpus_weight)(value)
    return {"corpus": part.corpus, "weight": part.weight}


def _named(key: str) -> BeforeValidator:
    """A string in place of a section stands for the section with that key alone."""
    return BeforeValidator(lambda value: {key: value} if isinstance(value, str) else value)


def _some(values: tuple[str, ...]) -> tuple[str, ...]:
    if not values:
        raise ValueError("name a corpus, or several")
    return values


def _split(value: Any) -> Any:
    """Names joined by commas, as on the command line, stand for a list."""
    return tuple(value.split(",")) if isinstance(value, str) else value


Count = Annotated[int, Field(ge=0, le=10**6, strict=True)]
Index = Annotated[int, Field(ge=0, le=10**6)]
Indices = tuple[Count, ...]
Groups = Annotated[
    tuple[Text, ...],
    BeforeValidator(_split),
    checked_by(lambda names: parse_groups(",".join(names))),
]
Fitness = Annotated[
    tuple[Text, ...],
    BeforeValidator(_split),
    checked_by(lambda names: parse_measures(",".join(names))),
]

OneOrMore = Annotated[
    tuple[options.Corpus, ...],
    BeforeValidator(lambda value: (value,) if isinstance(value, str) else value),
    AfterValidator(_some),
    AfterValidator(options.each_once),
    # One is written, and counts for the digest, as it stands.
    PlainSerializer(lambda value: value[0] if len(value) == 1 else value),
]


class CalibrateSection(CalibrateOptions):
    """Options of `moeprune calibrate`.

    `--trust-remote-code` is no key: whoever runs the recipe decides.
    """

    groups: Groups = ()


class CorpusPart(Request):
    """A calibration corpus and its weight in the blend."""

    corpus: options.Corpus
    weight: float = Field(default=1.0, gt=0, allow_inf_nan=False)


class BudgetSection(Request):
    """How much is removed: a sparsity, a number, a size, or a share of the bytes or parameters."""

    shrink: options.Shrink | None = None
    sparsity: options.Sparsity | None = None
    remove: options.Remove | None = None
    target_size: options.TargetSize | None = None
    params_share: options.ParamsShare | None = None
    target_dtype: options.TargetDtype = "own"
    uneven: options.Uneven = False


class ScheduleSection(Request):
    """How the budget is spread over the layers."""

    name: options.Schedule
    file: options.ScheduleFile | None = None
    measured_on: tuple[options.MeasuredOn, ...] = ()
    cost: options.Cost = "esap"
    across: options.Across = "mean"

    @property
    def is_measured(self) -> bool:
        """Whether the sensitivity of layers spreads the budget."""
        return self.name == MEASURED


class ConstraintSection(Request):
    """What the plan must respect; layers and experts are numbers."""

    multiple_of: options.MultipleOf = 1
    protect: Indices = ()
    pin: dict[Index, Indices] = Field(default_factory=dict)
    drop: dict[Index, Indices] = Field(default_factory=dict)
    set: dict[Index, Count] = Field(default_factory=dict)
    lock: Indices = ()
    floor: options.Floor = 0


class SearchSamples(Request):
    """The samples that a search measures candidates on."""

    corpus: options.Corpus
    samples: options.Samples = 64


class SearchSection(SearchSettings, SearchSamples):
    """A search for the allocation (arXiv:2603.06003, Algorithm 1); defaults are the paper's."""

    fitness: Literal["esap", "sap", "kl", "nll"] = "esap"


class SensitivitySection(Request):
    """Options of `moeprune sensitivity`; `corpus` is one or a list, refined as one plan."""

    corpus: OneOrMore
    samples: options.Samples = SENSITIVITY_SAMPLES
    levels: options.Levels = DEFAULT_LEVELS
    refine: options.Refine = 0


class EvaluateSection(Request):
    """What to measure of the plan, on which corpus."""

    corpus: options.Corpus
    fitness: Fitness = ("esap", "nll")  # the loss is what results are ranked by
    samples: options.Samples | None = None
    seq_len: options.SeqLen | None = None
    seed: options.Seed | None = None


class ExportSection(ExportOptions):
    """Where the checkpoint goes."""

    model: options.Model | None = None  # a quantised copy of the recipe's, to prune instead
    revision: options.Revision | None = None
    verify: options.Verify = True

    @field_validator("revision")
    @classmethod
    def _has_its_model(cls, value: str | None, info: ValidationInfo) -> str | None:
        if value and info.data.get("model") is None:
            raise ValueError("it is of the copy; name that under export, as model")
        return value


class Recipe(Request):
    """All settings from calibration to export, as in recipe.yaml.

    Paths are relative to the working directory.
    """

    schema_version: Literal[1] = 1
    model: options.Model
    revision: options.Revision | None = None
    corpora: tuple[Annotated[CorpusPart, BeforeValidator(_corpus_part)], ...] = ()
    tokens: options.Tokens | None = None
    seq_len: options.SeqLen | None = None
    seed: options.Seed | None = None
    dtype: options.Dtype = "auto"
    calibrate: CalibrateSection = CalibrateSection()
    kept_neurons: options.KeptNeurons | None = None
    criterion: options.Criterion
    gate: options.Gate = "applied"
    granularity: options.Granularity = Field(default="expert", validate_default=True)
    neuron_scope: options.NeuronScope | None = None
    width_mode: options.WidthMode | None = None
    width_multiple_of: options.WidthMultipleOf | None = None
    budget: BudgetSection | None = None
    schedule: Annotated[ScheduleSection, _named("name")] = Field(
        default=ScheduleSection(name="uniform"), validate_default=True
    )
    constraints: ConstraintSection = ConstraintSection()
    search: SearchSection | None = None
    sensitivity: SensitivitySection | None = None
    evaluate: EvaluateSection | None = None
    allow_test_set: options.AllowTestSet = False
    export: Annotated[ExportSection | None, _named("out")] = None

    @field_validator("corpora")
    @classmethod
    def _named_once(cls, value: Sequence[CorpusPart]) -> Sequence[CorpusPart]:
        names = [part.corpus for part in value]
        distinct = options.each_once(names)
        if repeated := next((a for a, b in zip_longest(names, distinct) if a != b), None):
            raise ValueError(f"{repeated} is listed twice, by name or content")
        return value

    @field_validator("criterion")
    @classmethod
    def _has_corpora(cls, value: str, info: ValidationInfo) -> str:
        if _ranks_by_text(value) and info.data.get("corpora") == () and not _has_file(info):
            raise ValueError(f"{value} ranks by calibration text; list some under corpora")
        return value

    @field_validator("granularity")
    @classmethod
    def _goes_with_the_criterion(cls, value: str, info: ValidationInfo) -> str:
        if "criterion" in info.data:
            criterion = get_criterion(info.data["criterion"])
            if criterion.score is None and value != NEURON_GRANULARITY:
                raise ValueError(
                    f"{criterion.name} ranks neurons; say granularity: {NEURON_GRANULARITY}"
                )
            checked(lambda granularity: check_ranks(criterion, granularity))(value)
        if _has_file(info) and value != NEURON_GRANULARITY:
            raise ValueError(f"kept_neurons names neurons; say granularity: {NEURON_GRANULARITY}")
        return value

    @field_validator("neuron_scope", "width_mode", "width_multiple_of")
    @classmethod
    def _is_of_neurons(cls, value: Any, info: ValidationInfo) -> Any:
        if value is not None and info.data.get("granularity") == "expert":
            raise ValueError(f"is for plans of neurons; say granularity: {NEURON_GRANULARITY}")
        return value

    @field_validator("constraints")
    @classmethod
    def _suits_neurons(cls, value: ConstraintSection, info: ValidationInfo) -> ConstraintSection:
        if info.data.get("granularity") == NEURON_GRANULARITY and (value.set or value.lock):
            raise ValueError("layers cannot be set or locked by hand in a plan of neurons")
        return value

    @field_validator("budget")
    @classmethod
    def _is_one(cls, value: BudgetSection | None, info: ValidationInfo) -> Any:
        if value and sum(getattr(value, key) is not None for key in BUDGETS) != 1:
            raise ValueError(f"give one of {', '.join(BUDGETS[:-1])} and {BUDGETS[-1]}")
        targets = ("shrink", "target_size", "params_share")
        if value and value.uneven and not any(getattr(value, key) for key in targets):
            raise ValueError(f"uneven goes with {', '.join(targets[:-1])} or {targets[-1]}")
        if value and value.uneven and info.data.get("granularity") == NEURON_GRANULARITY:
            raise ValueError("uneven is for plans of whole experts; leave it out")
        return value

    @field_validator("search")
    @classmethod
    def _searches_experts(cls, value: Any, info: ValidationInfo) -> Any:
        if value is not None and info.data.get("granularity") == NEURON_GRANULARITY:
            raise ValueError("a search spreads whole experts; leave it out of a plan of neurons")
        return value

    @field_validator("schedule")
    @classmethod
    def _goes_with_the_budget(cls, value: ScheduleSection, info: ValidationInfo) -> ScheduleSection:
        if (value.name == "file") != (value.file is not None):
            raise ValueError("the schedule 'file' and the key file belong together")
        by_neuron = info.data.get("granularity") == NEURON_GRANULARITY
        if by_neuron and value.name not in ("uniform", MEASURED):
            raise ValueError(f"plans of neurons have neuron_scope, or the schedule {MEASURED}")
        if value.is_measured and info.data.get("neuron_scope"):
            raise ValueError(
                f"with {MEASURED} neurons compete within layers; leave neuron_scope out"
            )
        if not value.is_measured and value != ScheduleSection(name=value.name, file=value.file):
            raise ValueError(f"measured_on, cost and across are for the schedule {MEASURED}")
        says_all = value.file or info.data.get("kept_neurons")
        if not says_all and info.data.get("budget", value) is None:
            raise ValueError(f"a budget is missing; add budget: with one of {', '.join(BUDGETS)}")
        if info.data.get("kept_neurons") and info.data.get("budget"):
            raise ValueError("kept_neurons says what stays; leave budget out")
        if "corpora" not in info.data or "criterion" not in info.data:
            return value  # these are refused themselves
        criterion, corpora = info.data["criterion"], info.data["corpora"]
        ranks = _ranks_by_text(criterion) and not info.data.get("kept_neurons")
        if not corpora and value.name == FREQUENCY:
            raise ValueError("the frequency schedule counts tokens; list some text under corpora")
        if corpora and not ranks and value.name != FREQUENCY:
            raise ValueError(f"nothing here reads text, nor does {criterion}; leave corpora out")
        return value

    @field_validator("sensitivity")
    @classmethod
    def _is_used(cls, value: Any, info: ValidationInfo) -> Any:
        schedule, search = info.data.get("schedule"), info.data.get("search")
        if value is None or schedule is None:
            return value
        if not schedule.is_measured and (search is None or search.start != MEASURED):
            raise ValueError(
                f"nothing reads it; say schedule: {MEASURED}, or start: {MEASURED} under search"
            )
        budget = info.data.get("budget")
        by_neuron = info.data.get("granularity") == NEURON_GRANULARITY
        if value.refine and budget and by_neuron and (budget.shrink or budget.target_size):
            raise ValueError(
                "refine of neurons needs a budget other than bytes, which depend on padding; give "
                "sparsity, params_share or remove"
            )
        return value

    @property
    def reads_text(self) -> bool:
        """Whether anything in the recipe reads calibration text."""
        if self.kept_neurons is not None:
            return False
        return self.schedule.name == FREQUENCY or _ranks_by_text(self.criterion)

    @property
    def scope(self) -> NeuronScope:
        """Among which neurons a budget is spent."""
        return parse_scope(self.neuron_scope or str(NeuronScope.EXPERT))

    @property
    def width_multiple(self) -> int:
        """Widths of an export are rounded up to a multiple of this."""
        return self.width_multiple_of or DEFAULT_MULTIPLE

    def to_dict(self) -> dict[str, Any]:
        """Plain values in the order of the keys, defaults left out."""
        plain: dict[str, Any] = self.model_dump(mode="json", exclude_defaults=True)
        return {"schema_version": self.schema_version, **plain}

    def to_yaml(self) -> str:
        """recipe.yaml as text; reading it gives the same recipe."""
        return yaml.safe_dump(self.to_dict(), sort_keys=False, allow_unicode=True)

    @property
    def digest(self) -> str:
        """SHA-256 of what decides the pruned model; spelling, defaults and `export` do not."""
        decides = self.model_dump(mode="json", exclude=set(_NOT_DECIDING))
        decides["calibrate"] = {key: decides["calibrate"][key] for key in _DECIDING}
        _leave_out_later(decides)
        budget = decides["budget"]
        for key in ("sparsity", "shrink", "params_share"):
            if budget and budget.get(key) is not None:
                budget[key] = str(parse_sparsity(budget[key]))
        if budget and budget["target_size"] is not None:
            budget["target_size"] = str(parse_gib(budget["target_size"]))
        for key in ("protect", "lock"):
            decides["constraints"][key] = sorted(set(decides["constraints"][key]))
        for key in ("pin", "drop"):
            named = decides["constraints"][key]
            decides["constraints"][key] = {layer: sorted(set(named[layer])) for layer in named}
        return hashlib.sha256(json.dumps(decides, sort_keys=True).encode()).hexdigest()


def _leave_out_later(decides: dict[str, Any]) -> None:
    """Remove keys that were added later and are at their defaults."""
    for name, later in _LATER.items():
        section = decides[name] if name else decides
        for key, usual in later.items() if section else ():
            if section[key] == usual:
                del section[key]
    calibrate = decides["calibrate"]
    if calibrate["answers"] == "given":
        del calibrate["answers"], calibrate["answer_tokens"]


def _ranks_by_text(criterion: str) -> bool:
    return get_criterion(criterion).source == "routed"


def _has_file(info: ValidationInfo) -> bool:
    return info.data.get("kept_neurons") is not None
