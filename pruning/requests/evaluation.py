"""Requests to measure a model and its plans: losses, bins, hidden states, sensitivity, answers."""

from dataclasses import replace
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from analysis.corpora.spec import CHECK_NAMES, parse_corpus
from analysis.criteria import check_ranks, get_criterion
from analysis.errors import PlanError
from analysis.numbers.sparsity import parse_sparsity
from pruning.measures.names import DEFAULT_MEASURES
from pruning.measures.points import DEFAULT_LEVELS
from pruning.measures.result import DECODED, RIGHT
from pruning.measures.sample_settings import DEFAULT_SAMPLES, SampleSettings
from pruning.option import Option
from pruning.plan.bits import OWN
from pruning.plan.plan import NEURON_GRANULARITY
from pruning.requests.calibration import check_blocks, check_spread, seq_len_of
from pruning.requests.model import ActionOptions, ModelRequest
from pruning.requests.questions import QuestionOptions
from pruning.schedules import MEASURED
from pruning.spec import options, plan_options
from pruning.spec.base import Request, words_of
from pruning.spec.options import DEFAULT_SEQ_LEN
from pruning.spec.spec import BudgetSpec, LimitsSpec, PlanSpec, spec_of

OneCorpus = Annotated[
    tuple[options.MeasuredCorpus, ...],
    BeforeValidator(lambda value: (value,) if isinstance(value, str) else value),
    Field(min_length=1, max_length=1),
    Option("Corpus to run on, as for calibrate."),
]
# Under its usual name, which exponents may have as well.
NamedCriterion = Annotated[
    options.Criterion, AfterValidator(lambda value: get_criterion(value).name)
]
_ASCENDING = AfterValidator(lambda values: tuple(sorted(dict.fromkeys(values), key=parse_sparsity)))


class HeldOutRequest(ModelRequest):
    """A model, the corpora that it runs on, and how it runs.

    `count` says which tokens are scored: answers, all, or answers if the corpus has some.
    """

    corpora: Annotated[tuple[options.MeasuredCorpus, ...], AfterValidator(options.each_once)] = (
        Field(min_length=1)
    )
    samples: options.Samples = DEFAULT_SAMPLES
    windows_per_document: options.WindowsPerDocument | None = None
    seq_len: Annotated[
        options.SeqLen | None,
        Option(f"Tokens of a sample; default: a preset's own, else {DEFAULT_SEQ_LEN}."),
    ] = None
    seed: Annotated[
        options.Seed | None,
        Option("Seed of documents, draws, bootstrap; default: the calibration's order, 42."),
    ] = None
    count: options.ScoredTokens = "auto"
    template_args: options.TemplateArgs = Field(default_factory=dict)
    skip_bad_rows: options.SkipBadRows = 0
    dtype: options.Dtype = "auto"
    device: options.Device = "auto"
    batch_size: options.BatchSize = 8
    attention: options.Attention = "auto"
    device_map: options.DeviceMap | None = None
    max_memory: options.MaxMemory = ()
    offload_folder: options.OffloadFolder | None = None
    trust_remote_code: options.Trust = False
    allow_test_set: options.AllowTestSet = False
    stats_dir: options.StatsDir | None = None

    @model_validator(mode="after")
    def _placement_is_whole(self) -> "HeldOutRequest":
        check_spread(self.device_map, self.max_memory, self.offload_folder)
        return self

    def sample_settings(self, corpus: str) -> SampleSettings:
        """How much of a corpus to evaluate on."""
        return SampleSettings(
            self.samples,
            seq_len_of(corpus, self.seq_len),
            self.seed,
            self.count,
            self.template_args,
            self.windows_per_document,
        )


class StreamableRequest(HeldOutRequest):
    """A model that may be larger than memory: one layer is loaded at a time."""

    stream_layers: options.StreamLayers = False
    experts_at_once: options.ExpertsAtOnce | None = None
    hidden_states_dir: options.HiddenStatesDir | None = None

    @model_validator(mode="after")
    def _placement_is_one(self) -> "StreamableRequest":
        if self.stream_layers and self.device_map:
            raise ValueError("choose one of --device-map, --stream-layers")
        check_blocks(self.experts_at_once, stream_layers=self.stream_layers)
        return self


class MeasureRequest(QuestionOptions, StreamableRequest):
    """What to measure of a model and its plans on corpora."""

    measures: options.Measures = DEFAULT_MEASURES
    repair: options.Repair = False

    @model_validator(mode="after")
    def _can_be_asked(self) -> "MeasureRequest":
        if RIGHT in self.measures and not any(
            parse_corpus(corpus).check for corpus in self.corpora
        ):
            raise ValueError(
                f"{RIGHT} needs a corpus whose answers can be checked; name the check behind one, "
                f"as FILE.jsonl,answer=COLUMN,check=number: {', '.join(CHECK_NAMES)}"
            )
        if RIGHT in self.measures and not self.questions:
            raise ValueError(f"{RIGHT} needs --questions; leave that measure out, or ask some")
        return self

    def sample_settings(self, corpus: str) -> SampleSettings:
        """How much of a corpus to evaluate on, and what to ask; by layers, nothing is asked."""
        settings = super().sample_settings(corpus)
        if self.stream_layers:
            return settings
        questions = self.question_settings(corpus, asked=RIGHT in self.measures)
        return replace(settings, questions=questions)

    @model_validator(mode="after")
    def _streams_what_can_be_streamed(self) -> "MeasureRequest":
        if self.stream_layers and (decoded := set(self.measures) & set(DECODED)):
            raise ValueError(
                f"{', '.join(sorted(decoded))} decodes with the whole model; leave --stream-layers "
                "out, or that measure"
            )
        return self


class EvaluateOptions(QuestionOptions):
    """How plans are measured."""

    bits: options.Bits = (OWN,)


class EvaluateRequest(EvaluateOptions, MeasureRequest):
    """Plans to evaluate; without any, the original model."""

    asked_by = "evaluate"
    writes = "result.json"
    plans: tuple[
        Annotated[
            options.Plan, Option("plan.json to evaluate; repeatable. Default: the original model.")
        ],
        ...,
    ] = ()
    top_k: plan_options.TopK | None = None


class RankedRequest(Request):
    """Plans by one or several criteria, from the same statistics."""

    calibrated_on: tuple[options.CalibratedOn, ...] = ()
    gate: options.Gate = "applied"
    granularity: options.Granularity = "expert"

    def spec_by(self, criterion: str, **fields: Any) -> PlanSpec:
        """The plan by a criterion; `fields` has its budget and spread."""
        spec = spec_of(
            criterion=criterion,
            granularity=self.granularity,
            corpora=self.calibrated_on,
            gate=self.gate,
            **fields,
        )
        return spec if spec.reads_text else spec.changed(corpora=())


class SweepRequest(RankedRequest, MeasureRequest):
    """Criteria against sparsities: every combination is planned and evaluated."""

    asked_by = "sweep"
    writes = "sweep.csv"
    criteria: Annotated[
        tuple[NamedCriterion, ...],
        options.EACH_ONCE,
        Option("Criterion, such as reap, aimer, random or b,alpha,beta; repeatable."),
    ] = Field(min_length=1)
    sparsities: Annotated[
        tuple[plan_options.Sparsity, ...],
        _ASCENDING,
        Option("Fraction of experts removed: 0.5 or 50%; repeatable."),
    ] = ()
    shrink: Annotated[
        tuple[plan_options.Shrink, ...],
        _ASCENDING,
        Option("Share of the checkpoint's bytes: 0.4 or 40%; repeatable."),
    ] = ()
    schedule: plan_options.Schedule = "uniform"
    neuron_scope: plan_options.NeuronScope = "expert"
    bits: options.Bits = (OWN,)
    top_k: plan_options.TopK | None = None

    @model_validator(mode="after")
    def _can_be_planned(self) -> "SweepRequest":
        if not self.budgets:
            raise PlanError("A sweep needs --sparsity or --shrink; both are repeatable.")
        for criterion in self.criteria:
            check_ranks(get_criterion(criterion), self.granularity)
        if self.granularity == NEURON_GRANULARITY and self.schedule not in ("uniform", MEASURED):
            raise PlanError(
                f"Plans of neurons have --neuron-scope, or --schedule {MEASURED}; not "
                f"{self.schedule}."
            )
        if self.schedule == "file":
            raise PlanError("A schedule from a file has its own budget; it cannot be swept.")
        return self

    @property
    def budgets(self) -> list[dict[str, str]]:
        """The budget of each plan of a criterion, as a field of a `BudgetSpec`."""
        by_bytes = [{"shrink": shrink} for shrink in self.shrink]
        return [*({"sparsity": sparsity} for sparsity in self.sparsities), *by_bytes]

    def specs(self, criterion: str) -> list[PlanSpec]:
        """The plans of a criterion, by budget."""
        spread = {"schedule": self.schedule}
        if self.granularity == NEURON_GRANULARITY and self.schedule != MEASURED:
            spread = {"neuron_scope": self.neuron_scope}
        return [self.spec_by(criterion, **budget, **spread) for budget in self.budgets]


SENSITIVITY_SAMPLES = 32


class SensitivityOptions(ActionOptions):
    """How closely curves are measured, and the rounds that refine a plan."""

    samples: options.Samples = SENSITIVITY_SAMPLES
    levels: plan_options.Levels = DEFAULT_LEVELS
    refine: plan_options.Refine = 0


class SensitivityRequest(SensitivityOptions, RankedRequest, StreamableRequest):
    """Curves of a criterion's order on corpora, and the plans that follow from them."""

    asked_by = "sensitivity"
    criterion: NamedCriterion
    sparsities: Annotated[
        tuple[plan_options.Sparsity, ...],
        _ASCENDING,
        Option("Also measure the plan of this sparsity: 0.5 or 50%; repeatable."),
    ] = ()
    shrink: Annotated[
        tuple[plan_options.Shrink, ...],
        _ASCENDING,
        Option("The same for a share of the checkpoint's bytes; repeatable."),
    ] = ()
    target_size: plan_options.TargetSize | None = None
    target_dtype: plan_options.TargetDtype = "own"
    params_share: plan_options.ParamsShare | None = None
    remove: plan_options.Remove | None = None
    limits: LimitsSpec = LimitsSpec()
    bits: options.LayerBits = ()
    repair: options.Repair = False
    cost: Annotated[plan_options.Cost, Option("Cost that plans of a budget minimise.")] = "esap"
    across: Annotated[
        plan_options.Across, Option("With several corpora, minimise their mean or the worst.")
    ] = "mean"

    @model_validator(mode="after")
    def _fits_together(self) -> "SensitivityRequest":
        check_ranks(get_criterion(self.criterion), self.granularity)
        for name, is_given in (("refine", self.refine), ("repair", self.repair)):
            if is_given and not self.budgets:
                raise ValueError(f"--{name} is of plans; name their --sparsity, or another budget")
        if self.granularity == NEURON_GRANULARITY:
            if self.limits.set:
                raise ValueError(
                    "layers cannot be set by hand in a plan of neurons; leave --set out"
                )
            if self.shrink or self.target_size:
                raise ValueError(
                    "bytes of neurons depend on padding, which changes with every plan; give "
                    "--sparsity, --params-share or --remove"
                )
        return self

    @property
    def budgets(self) -> list[dict[str, Any]]:
        """The budget of each plan, as a field of a `BudgetSpec`."""
        several = {"sparsity": self.sparsities, "shrink": self.shrink}
        single = {name: getattr(self, name) for name in ("target_size", "params_share", "remove")}
        budgets = [{name: value} for name, values in several.items() for value in values]
        return [*budgets, *({name: value} for name, value in single.items() if value is not None)]

    @property
    def budget_words(self) -> list[str]:
        """The same as options of a command line."""
        fields = BudgetSpec.model_fields
        return [
            " ".join(words_of(name, fields[name], value))
            for budget in self.budgets
            for name, value in budget.items()
        ]

    def specs(self) -> list[PlanSpec]:
        """The plan of each budget; without any, one that removes nothing, for the order."""
        return [
            self.spec_by(
                self.criterion,
                **budget,
                target_dtype=self.target_dtype,
                schedule=MEASURED,
                cost=self.cost,
                across=self.across,
                limits=self.limits,
            )
            for budget in self.budgets or [{"sparsity": "0"}]
        ]


class TopKRequest(StreamableRequest):
    """What fewer experts per token cost in each layer alone, on corpora."""

    asked_by = "topk"
    samples: options.Samples = SENSITIVITY_SAMPLES
    levels: Annotated[
        plan_options.Levels,
        Option("Numbers to measure in each layer at most: fewer by one, and spread to top-1."),
    ] = DEFAULT_LEVELS
    means: Annotated[
        tuple[plan_options.MeanTopK, ...],
        options.EACH_ONCE,
        Option("Also measure the plan of this mean of experts per token; repeatable."),
    ] = ()
    refine: plan_options.Refine = 0
    cost: Annotated[plan_options.Cost, Option("Cost to show and to minimise.")] = "esap"
    across: Annotated[
        plan_options.Across, Option("With several corpora, minimise their mean or the worst.")
    ] = "mean"

    @model_validator(mode="after")
    def _refines_plans(self) -> "TopKRequest":
        if self.refine and not self.means:
            raise ValueError("--refine is of plans; name their --mean-top-k")
        return self
