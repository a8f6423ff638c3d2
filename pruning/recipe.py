"""Recipe: all that a person chose, from the model to the export, as one validated value."""

import hashlib
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationInfo,
    field_validator,
)

from analysis.choose import parse_corpus_weight
from analysis.corpora import parse_corpus
from analysis.criteria import get_criterion
from analysis.errors import UserError
from analysis.sparsity import parse_sparsity
from analysis.stats import Gate
from pruning.budget import TargetDtype, parse_gib
from pruning.schedules import get_schedule
from pruning.surgery.resharding import parse_size

FREQUENCY = "frequency"
_NOT_DECIDING = ("evaluate", "export")  # they change nothing of what is pruned


def _problem(check: Callable[[Any], object], value: Any) -> None:
    """Run a check of ours so that pydantic collects what it says."""
    try:
        check(value)
    except UserError as error:
        raise ValueError(str(error)) from error


def _decimal(value: Any) -> Any:
    """YAML reads 0.5 as a float; its shortest decimal form is what was written."""
    return str(value) if isinstance(value, int | float) and not isinstance(value, bool) else value


def _known_corpus(value: str) -> str:
    _problem(parse_corpus, value)
    return value


def _corpus_part(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    try:
        part = parse_corpus_weight(value)
    except UserError as error:
        raise ValueError(str(error)) from error
    return {"corpus": part.corpus, "weight": part.weight}


def _named(key: str) -> BeforeValidator:
    """A text in place of a section stands for the section with that key alone."""
    return BeforeValidator(lambda value: {key: value} if isinstance(value, str) else value)


Text = Annotated[str, Field(min_length=1, max_length=4096)]
Corpus = Annotated[Text, AfterValidator(_known_corpus)]
Decimal = Annotated[str, BeforeValidator(_decimal)]
Count = Annotated[int, Field(ge=0, le=10**6, strict=True)]
Index = Annotated[int, Field(ge=0, le=10**6)]
Indices = tuple[Annotated[int, Field(ge=0, le=10**6, strict=True)], ...]


class Section(BaseModel):
    """A part of a recipe; unknown keys are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class CorpusPart(Section):
    """A calibration corpus and its weight in the blend."""

    corpus: Corpus
    weight: float = Field(default=1.0, gt=0, allow_inf_nan=False)


class BudgetSection(Section):
    """How much goes: one of a sparsity, a number of experts, a target size in GiB."""

    sparsity: Decimal | None = None
    remove: Count | None = None
    target_gib: Decimal | None = None
    target_dtype: TargetDtype = Field(default="own", validate_default=True)

    @field_validator("sparsity")
    @classmethod
    def _is_sparsity(cls, value: str | None) -> str | None:
        if value is not None:
            _problem(parse_sparsity, value)
        return value

    @field_validator("target_gib")
    @classmethod
    def _is_size(cls, value: str | None) -> str | None:
        if value is not None:
            _problem(parse_gib, value)
        return value

    @field_validator("target_dtype")
    @classmethod
    def _is_one(cls, value: str, info: ValidationInfo) -> str:
        # The last field: by now it is known which of the others were given, in whatever state.
        seen = [key for key in ("sparsity", "remove", "target_gib") if key in info.data]
        if len(seen) == 3 and sum(info.data[key] is not None for key in seen) != 1:
            raise ValueError("give one of sparsity, remove and target_gib")
        return value


class ScheduleSection(Section):
    """How the budget is spread over the layers."""

    name: Text
    file: Path | None = None

    @field_validator("name")
    @classmethod
    def _known(cls, value: str) -> str:
        _problem(get_schedule, value)
        return value


class ConstraintSection(Section):
    """What the plan must respect; layers and experts by number."""

    multiple_of: int = Field(default=1, ge=1, le=4096, strict=True)
    protect: Indices = ()
    pin: dict[Index, Indices] = Field(default_factory=dict)
    drop: dict[Index, Indices] = Field(default_factory=dict)
    set: dict[Index, Count] = Field(default_factory=dict)
    lock: Indices = ()


class SearchSection(Section):
    """A search for the allocation (arXiv:2603.06003, Algorithm 1); defaults are the paper's."""

    corpus: Corpus
    samples: int = Field(default=64, ge=1, le=10**6, strict=True)
    population: int = Field(default=32, ge=2, le=10**5, strict=True)
    elites: int = Field(default=4, ge=1, le=10**5, strict=True)
    generations: int = Field(default=50, ge=1, le=10**5, strict=True)
    max_transfer: int = Field(default=4, ge=1, le=10**5, strict=True)
    max_steps: int = Field(default=3, ge=1, le=10**3, strict=True)
    fitness: Literal["esap", "sap", "kl", "nll"] = "esap"
    seed: int = Field(default=42, ge=0, lt=2**63, strict=True)
    racing: float | None = Field(default=None, gt=0.5, lt=1)

    @field_validator("elites")
    @classmethod
    def _leave_room(cls, value: int, info: ValidationInfo) -> int:
        if value >= info.data.get("population", value + 1):
            raise ValueError("a population needs room for children: fewer elites than candidates")
        return value


class EvaluateSection(Section):
    """What is measured of the plan, on which text."""

    corpus: Corpus
    fitness: tuple[Text, ...] = ("esap",)


class ExportSection(Section):
    """Where the checkpoint goes."""

    out: Path
    mtp: Literal["keep", "drop", "prune"] | None = None
    verify: bool = Field(default=True, strict=True)
    hash_source: bool = Field(default=False, strict=True)
    max_shard_size: str | None = Field(default=None, max_length=32)
    keep_list: bool = Field(default=False, strict=True)

    @field_validator("max_shard_size")
    @classmethod
    def _is_shard_size(cls, value: str | None) -> str | None:
        if value is not None:
            _problem(parse_size, value)
        return value


class Recipe(Section):
    """All that a person chose. `recipe.yaml` holds it; see docs/formats.md for the keys.

    Paths are relative to the working directory.
    """

    schema_version: Literal[1] = 1
    model: Text
    revision: Text | None = None
    corpora: tuple[Annotated[CorpusPart, BeforeValidator(_corpus_part)], ...] = ()
    tokens: int | None = Field(default=None, ge=2, le=10**10, strict=True)
    seq_len: int | None = Field(default=None, ge=2, le=10**6, strict=True)
    seed: int | None = Field(default=None, ge=0, lt=2**63, strict=True)
    dtype: Text = "auto"
    criterion: Text
    gate: Gate = "applied"
    granularity: Literal["expert", "atomic"] = "expert"
    budget: BudgetSection | None = None
    schedule: Annotated[ScheduleSection, _named("name")] = Field(
        default=ScheduleSection(name="uniform"), validate_default=True
    )
    constraints: ConstraintSection = ConstraintSection()
    search: SearchSection | None = None
    evaluate: EvaluateSection | None = None
    export: Annotated[ExportSection | None, _named("out")] = None

    @field_validator("corpora")
    @classmethod
    def _named_once(cls, value: Sequence[CorpusPart]) -> Sequence[CorpusPart]:
        names = [part.corpus for part in value]
        if repeated := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"{repeated[0]} is listed twice; give it one weight")
        return value

    @field_validator("criterion", mode="before")
    @classmethod
    def _known_criterion(cls, value: Any, info: ValidationInfo) -> Any:
        if not isinstance(value, str):
            return value
        _problem(get_criterion, value)
        if get_criterion(value).source == "routed" and info.data.get("corpora") == ():
            raise ValueError(f"{value} ranks by calibration text; list some under corpora")
        return value

    @field_validator("schedule")
    @classmethod
    def _goes_with_the_budget(cls, value: ScheduleSection, info: ValidationInfo) -> ScheduleSection:
        if (value.name == "file") != (value.file is not None):
            raise ValueError("the schedule 'file' and the key file belong together")
        if value.file is None and info.data.get("budget", value) is None:
            raise ValueError("a budget is missing: sparsity, remove or target_gib under budget")
        if value.name == FREQUENCY and info.data.get("corpora") == ():
            raise ValueError("the frequency schedule counts tokens; list some text under corpora")
        criterion = info.data.get("criterion", "")
        is_read = value.name == FREQUENCY or not criterion
        if info.data.get("corpora") and not is_read and get_criterion(criterion).source != "routed":
            raise ValueError(f"nothing here reads text, nor does {criterion}; leave corpora out")
        return value

    def to_dict(self) -> dict[str, Any]:
        """Plain values in the order of the keys; what is at its default is left out."""
        plain: dict[str, Any] = self.model_dump(mode="json", exclude_defaults=True)
        return {"schema_version": self.schema_version, **plain}

    def to_yaml(self) -> str:
        """recipe.yaml as text; reading it gives the same recipe."""
        return yaml.safe_dump(self.to_dict(), sort_keys=False, allow_unicode=True)

    @property
    def digest(self) -> str:
        """SHA-256 of what decides the pruned model: spelling, defaults and `export` do not."""
        decides = self.model_dump(mode="json", exclude=set(_NOT_DECIDING))
        budget = decides["budget"]
        if budget and budget["sparsity"] is not None:
            budget["sparsity"] = str(parse_sparsity(budget["sparsity"]))
        if budget and budget["target_gib"] is not None:
            budget["target_gib"] = str(parse_gib(budget["target_gib"]))
        for key in ("protect", "lock"):
            decides["constraints"][key] = sorted(set(decides["constraints"][key]))
        for key in ("pin", "drop"):
            named = decides["constraints"][key]
            decides["constraints"][key] = {layer: sorted(set(named[layer])) for layer in named}
        return hashlib.sha256(json.dumps(decides, sort_keys=True).encode()).hexdigest()
