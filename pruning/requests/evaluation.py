"""Requests to evaluate: plans, or criteria against sparsities, on held-out text."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, field_validator, model_validator

from analysis.attention import Attention
from analysis.corpora import parse_corpus
from analysis.criteria import check_ranks, get_criterion
from analysis.errors import PlanError
from analysis.sparsity import parse_sparsity
from analysis.stats.tables import Gate
from pruning.atoms.selection import parse_scope
from pruning.evaluate.bins import DEFAULT_BINS, Binning, Order, Scope
from pruning.evaluate.drawing import DEFAULT_SAMPLES, Scored, Wanted
from pruning.evaluate.result import DEFAULT_MEASURES, parse_measures
from pruning.plan import ATOMIC_GRANULARITY
from pruning.requests.base import (
    MaxMemory,
    Request,
    Text,
    check_spread,
    command_line,
    option_words,
    repeated,
    seq_len_of,
)
from pruning.schedules import get_schedule

DEFAULT_MEASURED = ",".join(DEFAULT_MEASURES)


def _known_corpus(value: str) -> str:
    parse_corpus(value)
    return value


Corpus = Annotated[Text, AfterValidator(_known_corpus)]


class MeasureRequest(Request):
    """A model, the text that it is evaluated on, and how it runs.

    `count` says what is predicted: answers, all tokens, or answers where the corpus has some.
    """

    model: Text
    corpora: tuple[Corpus, ...] = Field(min_length=1)
    measures: str = DEFAULT_MEASURED
    samples: int = Field(default=DEFAULT_SAMPLES, ge=1, le=10**6)
    seq_len: int | None = Field(default=None, ge=2, le=10**6)
    seed: int | None = Field(default=None, ge=0, lt=2**63)
    count: Scored = "auto"
    dtype: str = "auto"
    device: str = "auto"
    batch_size: int = Field(default=8, ge=1, le=4096)
    attention: Attention = "auto"
    device_map: Text | None = None
    max_memory: MaxMemory = ()
    offload_folder: Path | None = None
    hidden_states_dir: Path | None = None
    revision: str | None = None
    trust_remote_code: bool = False
    allow_test_set: bool = False
    stats_dir: Path | None = None

    @field_validator("measures")
    @classmethod
    def _known_measures(cls, value: str) -> str:
        return ",".join(parse_measures(value))

    @model_validator(mode="after")
    def _placement_is_whole(self) -> "MeasureRequest":
        check_spread(self.device_map, self.max_memory, self.offload_folder)
        return self

    @property
    def measured(self) -> tuple[str, ...]:
        """Names of the measures."""
        return parse_measures(self.measures)

    def wanted(self, corpus: str) -> Wanted:
        """How much of a corpus is evaluated on."""
        return Wanted(self.samples, seq_len_of(corpus, self.seq_len), self.seed, self.count)


class EvaluateRequest(MeasureRequest):
    """Plans to evaluate, each the content of a plan.json; without one, the unpruned model."""

    plans: tuple[dict[str, Any], ...] = ()

    def command(self, plans: Sequence[str] = ("plan.json",), out: str = "result.json") -> str:
        """The equivalent command line; `plans` names the files that hold the plans."""
        named = repeated("--plan", plans[: len(self.plans)])
        own = option_words(self, "model", "plans", "corpora")
        return command_line(
            "evaluate", self.model, *named, *repeated("--corpus", self.corpora), *own, "-o", out
        )


class SweepRequest(MeasureRequest):
    """Criteria against sparsities: every combination is planned and evaluated."""

    criteria: tuple[Text, ...] = Field(min_length=1)
    sparsities: tuple[str, ...] = Field(min_length=1)
    calibrated_on: tuple[Text, ...] = ()
    gate: Gate = "applied"
    schedule: str = "uniform"
    granularity: Literal["expert", "atomic"] = "expert"
    atom_scope: str = "expert"

    @field_validator("criteria")
    @classmethod
    def _known_criteria(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(dict.fromkeys(get_criterion(each).name for each in value))

    @field_validator("sparsities")
    @classmethod
    def _valid_sparsities(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for each in value:
            parse_sparsity(each)
        return tuple(sorted(dict.fromkeys(value), key=parse_sparsity))

    @field_validator("schedule")
    @classmethod
    def _known_schedule(cls, value: str) -> str:
        return get_schedule(value).name

    @field_validator("atom_scope")
    @classmethod
    def _known_scope(cls, value: str) -> str:
        return str(parse_scope(value))

    @model_validator(mode="after")
    def _neurons_are_asked_for(self) -> "SweepRequest":
        for criterion in self.criteria:
            check_ranks(get_criterion(criterion), self.granularity)
        if self.granularity == ATOMIC_GRANULARITY and self.schedule != "uniform":
            raise PlanError("Plans of neurons have --atom-scope in place of --schedule.")
        if self.schedule == "file":
            raise PlanError("A schedule from a file has its own budget; it cannot be swept.")
        return self

    def command(self, out: str = "sweep.csv") -> str:
        """The equivalent command line."""
        ranked = repeated("--criterion", self.criteria)
        ranked += repeated("--sparsity", self.sparsities)
        own = option_words(self, "model", "corpora", "criteria", "sparsities")
        return command_line(
            "sweep", self.model, *ranked, *repeated("--corpus", self.corpora), *own, "-o", out
        )


class BinsRequest(MeasureRequest):
    """Experts or neurons in bins by a criterion, each bin removed alone."""

    criterion: Text
    calibrated_on: tuple[Text, ...] = ()
    gate: Gate = "applied"
    granularity: Literal["expert", "atomic"] = "expert"
    scope: Scope | None = None
    order: Order = "saliency"
    bins: int = Field(default=DEFAULT_BINS, ge=2, le=100)

    @field_validator("criterion")
    @classmethod
    def _known_criterion(cls, value: str) -> str:
        return get_criterion(value).name

    @model_validator(mode="after")
    def _can_rank(self) -> "BinsRequest":
        criterion, is_atomic = get_criterion(self.criterion), self.granularity == ATOMIC_GRANULARITY
        check_ranks(criterion, self.granularity)
        if is_atomic and self.scope == "global" and criterion.within_layers:
            raise PlanError(
                f"{self.criterion} does not compare neurons of different layers; use --scope layer."
            )
        return self

    @property
    def binning(self) -> Binning:
        """How they are parted: by default experts within each layer, neurons over all if they can.

        A criterion may compare neurons of one layer only.
        """
        within = get_criterion(self.criterion).within_layers
        over_all = self.granularity == ATOMIC_GRANULARITY and not within
        usual: Scope = "global" if over_all else "layer"
        return Binning(self.bins, self.scope or usual, self.order)

    def command(self, out: str = "bins.csv") -> str:
        """The equivalent command line."""
        own = option_words(self, "model", "corpora", "criterion")
        ranked = ["--criterion", self.criterion]
        return command_line(
            "bins", self.model, *repeated("--corpus", self.corpora), *ranked, *own, "-o", out
        )


def check_named(plans: Sequence[object], names: Sequence[str]) -> None:
    """Refuse plans without names and names without plans, by a ValueError."""
    if len(names) != len(plans):
        raise ValueError(f"{len(plans)} plans have {len(names)} names")


class AskRequest(Request):
    """A prompt for the full model and for what plans leave of it."""

    model: Text
    prompt: str = Field(min_length=1, max_length=1 << 20)
    plans: tuple[dict[str, Any], ...] = ()
    names: tuple[str, ...] = ()
    max_new_tokens: int = Field(default=128, ge=1, le=1 << 16)
    raw: bool = False
    dtype: str = "auto"
    device: str = "auto"
    device_map: Text | None = None
    offload_folder: Path | None = None
    revision: str | None = None
    trust_remote_code: bool = False

    @model_validator(mode="after")
    def _fits_together(self) -> "AskRequest":
        check_named(self.plans, self.names)
        if self.offload_folder and not self.device_map:
            raise ValueError("--offload-folder needs --device-map auto")
        return self

    def command(self, *plans: str) -> str:
        """The equivalent command line; `plans` names the files that hold the plans."""
        named = repeated("--plan", plans[: len(self.plans)])
        own = option_words(self, "model", "prompt", "plans", "names")
        return command_line("ask", self.model, *named, "--prompt", self.prompt, *own)
