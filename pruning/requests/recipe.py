"""Recipe: every choice from the model to the export, as one validated value."""

import hashlib
import json
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

from analysis.corpora.spec import parse_corpus, parse_corpus_weight
from analysis.errors import UserError
from analysis.numbers.sparsity import parse_sparsity
from pruning.plan.budget import parse_gib
from pruning.requests.calibration import CalibrateOptions
from pruning.requests.evaluation import EvaluateOptions, SensitivityOptions
from pruning.requests.model import ExportOptions
from pruning.requests.repair import RepairOptions
from pruning.requests.search_settings import SearchSettings
from pruning.schedules import MEASURED, PATTERNS, SCHEDULES
from pruning.spec import options
from pruning.spec.base import Request
from pruning.spec.spec import Misfit, PlanSpec

_NOT_DECIDING = ("evaluate", "export")  # without effect on what is pruned
# Keys of `calibrate` that decide which tokens count; the others only how they are run.
_DECIDING = ("packing", "truncate", "count", "answers", "answer_tokens", "select", "clusters")


def _named(key: str) -> BeforeValidator:
    """A string in place of a section stands for the section with that key alone."""
    return BeforeValidator(lambda value: {key: value} if isinstance(value, str) else value)


def _some(values: tuple[str, ...]) -> tuple[str, ...]:
    if not values:
        raise ValueError("name a corpus, or several")
    return values


OneOrMore = Annotated[
    tuple[options.Corpus, ...],
    options.SEVERAL,
    AfterValidator(_some),
    AfterValidator(options.each_once),
    # One is written, and counts for the digest, as it stands.
    PlainSerializer(lambda value: value[0] if len(value) == 1 else value),
]


class SearchSamples(Request):
    """The samples that a search measures candidates on."""

    corpus: options.Corpus
    samples: options.Samples = 64


class SearchSection(SearchSettings, SearchSamples):
    """A search for the allocation (arXiv:2603.06003, Algorithm 1); defaults are the paper's."""

    fitness: Literal["esap", "sap", "kl", "nll"] = "esap"


class SensitivitySection(SensitivityOptions):
    """Options of `moeprune sensitivity`; `corpus` is one or a list, refined as one plan."""

    corpus: OneOrMore


class RepairSection(RepairOptions):
    """Options of `moeprune repair`; by default the plan's corpora. `{}` takes all defaults."""

    @field_validator("corpora")
    @classmethod
    def _are_corpora(cls, corpora: tuple[str, ...]) -> tuple[str, ...]:
        for text in corpora:
            parse_corpus(parse_corpus_weight(text).corpus)
        return corpora


class EvaluateSection(EvaluateOptions):
    """What to measure of the plan, on which corpus."""

    corpus: options.Corpus
    fitness: options.Measures = ("esap", "nll")  # the loss is what results are ranked by
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

    Fields of the plan may stand outside of their sections. Paths are relative to the working
    directory.
    """

    schema_version: Literal[1] = 1
    model: options.Model
    revision: options.Revision | None = None
    plan: PlanSpec
    tokens: options.Tokens | None = None
    seq_len: options.SeqLen | None = None
    seed: options.Seed | None = None
    dtype: options.Dtype = "auto"
    template_args: options.TemplateArgs = Field(default_factory=dict)
    windows_per_document: options.WindowsPerDocument | None = None  # of search to evaluate
    skip_bad_rows: options.SkipBadRows = 0
    # `--trust-remote-code` is no key: whoever runs the recipe decides.
    calibrate: CalibrateOptions = CalibrateOptions()
    search: SearchSection | None = None
    sensitivity: SensitivitySection | None = None
    repair: RepairSection | None = None
    evaluate: EvaluateSection | None = None
    allow_test_set: options.AllowTestSet = False
    export: Annotated[ExportSection | None, _named("out")] = None

    @field_validator("plan")
    @classmethod
    def _can_be_run(cls, plan: PlanSpec) -> PlanSpec:
        ranking, schedule = plan.ranking, plan.spread.schedule
        if not ranking.criterion and plan.spread.kept_experts is None:
            raise Misfit("criterion", "give a name such as reap or aimer")
        if ranking.runs:
            raise Misfit("runs", "a recipe makes its runs; list corpora instead")
        names = [part.corpus for part in plan.corpus_weights]
        try:
            for name in names:
                parse_corpus(name)
        except UserError as error:
            raise Misfit("corpora", str(error)) from error
        distinct = options.each_once(names)
        if repeated := next((a for a, b in zip_longest(names, distinct) if a != b), None):
            raise Misfit("corpora", f"{repeated} is listed twice, by name or content")
        if names or not plan.reads_text:
            return plan
        if SCHEDULES[schedule].reads_tokens:
            reason = f"the {schedule} schedule counts tokens; list some text under corpora"
            raise Misfit("schedule", reason)
        if plan.limits.keep_super and not ranking.reads_text:
            reason = "super experts are told by calibration text; list some under corpora"
            raise Misfit("keep_super", reason)
        reason = f"{ranking.criterion} ranks by calibration text; list some under corpora"
        raise Misfit("criterion", reason)

    @field_validator("plan")
    @classmethod
    def _reads_what_it_names(cls, plan: PlanSpec) -> PlanSpec:
        if plan.ranking.corpora and not plan.reads_text:
            reason = f"nothing here reads text, nor does {plan.ranking.criterion}"
            raise Misfit("corpora", f"{reason}; leave corpora out")
        return plan

    @field_validator("search")
    @classmethod
    def _searches_experts(cls, value: Any, info: ValidationInfo) -> Any:
        plan = info.data.get("plan")
        if value is not None and plan and plan.spread.kept_experts is not None:
            raise ValueError("kept_experts says all that stays, so nothing is left to search")
        if value is not None and plan and plan.by_neuron:
            raise ValueError("a search spreads whole experts; leave it out of a plan of neurons")
        if value is not None and plan and (plan.budget.top_k or plan.budget.mean_top_k):
            raise ValueError(
                "a search measures with the model's own experts per token; leave top_k out, and "
                "give --top-k to evaluate and export"
            )
        return value

    @field_validator("search")
    @classmethod
    def _has_room(cls, value: Any, info: ValidationInfo) -> Any:
        """A population may leave out patterns, but not what the recipe itself starts from."""
        plan = info.data.get("plan")
        if value is None or plan is None:
            return value
        usual = {"uniform", *PATTERNS}
        starts = usual | {plan.spread.schedule} | ({MEASURED} & {value.start})
        if starts > usual and value.population < len(starts):
            own = " and ".join(sorted(starts - usual))
            raise ValueError(
                f"a population of {value.population} has no room for {own} among the "
                f"{len(starts)} allocations that the search starts from; give "
                f"population: {len(starts)} or more"
            )
        return value

    @field_validator("sensitivity")
    @classmethod
    def _is_used(cls, value: Any, info: ValidationInfo) -> Any:
        plan, search = info.data.get("plan"), info.data.get("search")
        if value is None or plan is None:
            return value
        if not plan.spread.is_measured and (search is None or search.start != MEASURED):
            raise ValueError(
                f"nothing reads it; say schedule: {MEASURED}, or start: {MEASURED} under search"
            )
        if value.refine and plan.by_neuron and (plan.budget.shrink or plan.budget.target_size):
            raise ValueError(
                "refine of neurons needs a budget other than bytes, which depend on padding; give "
                "sparsity, params_share or remove"
            )
        return value

    def to_dict(self) -> dict[str, Any]:
        """Plain values, defaults left out; the sections of the plan stand at the top."""
        plain: dict[str, Any] = self.model_dump(mode="json", exclude_defaults=True)
        head = {name: plain.pop(name) for name in ("model", "revision") if name in plain}
        return {"schema_version": self.schema_version, **head, **plain.pop("plan"), **plain}

    def to_yaml(self) -> str:
        """recipe.yaml as text; reading it gives the same recipe."""
        return yaml.safe_dump(self.to_dict(), sort_keys=False, allow_unicode=True)

    @property
    def digest(self) -> str:
        """SHA-256 of what decides the pruned model; spelling, defaults and `export` do not."""
        decides = self.model_dump(mode="json", exclude=set(_NOT_DECIDING), exclude_defaults=True)
        calibrate = decides.pop("calibrate", {})
        decides["calibrate"] = {key: calibrate[key] for key in _DECIDING if key in calibrate}
        budget = decides["plan"].get("budget", {})
        for key in ("sparsity", "shrink", "params_share"):
            if key in budget:
                budget[key] = str(parse_sparsity(budget[key]))
        if "target_size" in budget:
            budget["target_size"] = str(parse_gib(budget["target_size"]))
        return hashlib.sha256(json.dumps(decides, sort_keys=True).encode()).hexdigest()
