"""Requests: what a person asked for, validated, and the command line that asks the same."""

import shlex
from collections.abc import Iterable, Iterator
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from analysis.corpora import Sampling, parse_corpus
from analysis.errors import UserError
from analysis.sparsity import parse_sparsity
from analysis.stats.groups import misfit, parse_groups
from pruning.requests import options
from pruning.requests.options import (
    DEFAULT_ANSWER_TOKENS,
    DEFAULT_SEED,
    DEFAULT_SEQ_LEN,
    DEFAULT_TOKENS,
    Option,
    flags_of,
    option_of,
)

Kind = TypeVar("Kind", bound="Request")


class Request(BaseModel):
    """Values of a person, checked; unknown ones are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    def into(self, kind: type[Kind], **more: Any) -> Kind:
        """Another request of the same values, as far as it has them, and of `more`.

        Raises:
            UserError: they do not fit together.
        """
        shared = self.model_fields_set & kind.model_fields.keys()
        return validated(kind, {name: getattr(self, name) for name in shared} | more)


def check_spread(
    device_map: str | None, max_memory: tuple[str, ...], offload_folder: Path | None
) -> None:
    """Refuse limits and a folder of weights that are not spread, by a ValueError."""
    if (offload_folder or max_memory) and not device_map:
        raise ValueError("--offload-folder and --max-memory need --device-map auto")


class ModelRequest(Request):
    """What is asked of a model."""

    model: options.Model
    revision: options.Revision | None = None


class SampledRequest(ModelRequest):
    """A corpus, and how much of it is read.

    What is not given of tokens, sequence length and seed is the preset's, or the default.
    """

    corpus: options.Corpus
    tokens: options.Tokens | None = None
    seq_len: options.SeqLen | None = None
    seed: options.Seed | None = None


class CalibrateOptions(Request):
    """How corpora become tokens and the model runs over them, as in `moeprune calibrate`."""

    packing: options.Packing = "auto"
    truncate: options.Truncate | None = None
    count: options.Count = "all"
    answers: options.Answers = "given"
    answer_tokens: options.AnswerTokens | None = None
    select: options.Select | None = None
    clusters: options.Clusters | None = None
    device: options.Device = "auto"
    batch_size: options.BatchSize = 8
    attention: options.Attention = "auto"
    device_map: options.DeviceMap | None = None
    max_memory: options.MaxMemory = ()
    offload_folder: options.OffloadFolder | None = None
    stream_layers: options.StreamLayers = False
    hidden_states_dir: Annotated[
        Path | None, Option("With --stream-layers, keep hidden states in this folder.")
    ] = None
    expert_parallel: options.ExpertParallel = False
    checkpoint_activations: options.CheckpointActivations = False


class CalibrateRequest(CalibrateOptions, SampledRequest):
    """One calibration: a model on one corpus."""

    groups: options.Groups = "routed"
    dtype: options.Dtype = "auto"
    trust_remote_code: options.Trust = False
    allow_test_set: options.AllowTestSet = False
    resume: options.Resume = True
    stats_dir: options.StatsDir | None = None

    @model_validator(mode="after")
    def _clusters_are_selected_from(self) -> "CalibrateRequest":
        if (self.select is None) != (self.clusters is None):
            raise ValueError("--select kmeans and --clusters K belong together")
        return self

    @property
    def most_answer_tokens(self) -> int:
        """Length of an answer that the model writes itself, at most."""
        return self.answer_tokens or DEFAULT_ANSWER_TOKENS

    @model_validator(mode="after")
    def _answers_need_the_whole_model(self) -> "CalibrateRequest":
        if self.answer_tokens and self.answers != "own":
            raise ValueError("--answer-tokens belongs to --answers own")
        for option, value in (
            ("--stream-layers", self.stream_layers),
            ("--expert-parallel", self.expert_parallel),
        ):
            if value and self.answers == "own":
                raise ValueError(f"--answers own writes with the whole model; leave {option} out")
        return self

    @model_validator(mode="after")
    def _placement_is_one(self) -> "CalibrateRequest":
        ways = {
            "--device-map": self.device_map,
            "--stream-layers": self.stream_layers,
            "--expert-parallel": self.expert_parallel,
        }
        if len(chosen := [option for option, value in ways.items() if value]) > 1:
            raise ValueError(f"choose one of {', '.join(chosen)}")
        check_spread(self.device_map, self.max_memory, self.offload_folder)
        if self.hidden_states_dir and not self.stream_layers:
            raise ValueError("--hidden-states-dir needs --stream-layers")
        problem = misfit(
            parse_groups(self.groups),
            streams_layers=self.stream_layers,
            checkpoints=self.checkpoint_activations,
        )
        if problem:
            raise ValueError(problem)
        return self

    def sampling(self) -> Sampling:
        """How much of the corpus is used, and how it is cut.

        Rows of token ids are cut only where something says so.

        Raises:
            CorpusError: the values do not fit together.
        """
        preset = parse_corpus(self.corpus).preset
        seed = preset.seed if preset else DEFAULT_SEED
        return Sampling(
            self.tokens or (preset.tokens if preset else DEFAULT_TOKENS),
            seq_len_of(self.corpus, self.seq_len),
            seed if self.seed is None else self.seed,
            packing=self.packing,
            truncate=self.truncate or "head",
            count=self.count,
            whole=not (self.seq_len or self.truncate or preset),
        )

    def command(self) -> str:
        """The equivalent command line."""
        return command_line("calibrate", self.model, *option_words(self))


class WeightsRequest(ModelRequest):
    """Weight statistics of a model."""

    stats_dir: options.StatsDir | None = None

    def command(self) -> str:
        """The equivalent command line."""
        return command_line("weights", self.model, *option_words(self))


class OverlapRequest(ModelRequest):
    """Pruned sets of several corpora, to be compared; without a criterion, of all variants."""

    criterion: Annotated[
        options.Criterion | None, Option("One criterion; default: all 17 rankable variants.")
    ] = None
    corpora: tuple[options.WeighedCorpus, ...] = ()
    gate: options.Gate = "applied"
    sparsity: options.Sparsity
    stats_dir: options.StatsDir | None = None

    @property
    def fraction(self) -> Fraction:
        """The sparsity as an exact number."""
        return parse_sparsity(self.sparsity)


class RankRequest(ModelRequest):
    """A criterion, and the statistics that it reads."""

    criterion: options.Criterion
    corpora: tuple[options.WeighedCorpus, ...] = ()
    runs: tuple[options.Run, ...] = ()
    gate: options.Gate = "applied"
    stats_dir: options.StatsDir | None = None


class ScoreRequest(RankRequest):
    """Scores of experts or neurons."""

    granularity: Annotated[
        options.Granularity, Option("What is scored: whole experts (expert), or neurons (atomic).")
    ] = "expert"


class BlendRequest(RankRequest):
    """Corpora to mix, and the sparsity at which they are judged."""

    sparsity: options.Sparsity


class ExportOptions(Request):
    """Where an export goes, and what is written besides the weights."""

    out: Annotated[Path, Option("New folder to write.", place="OUT")]
    mtp: options.HeadsKept | None = None
    hash_source: options.HashSource = False
    max_shard_size: options.MaxShardSize | None = None
    keep_list: options.KeepList = False
    verify: options.Verify = False


class PrunedRequest(ExportOptions, ModelRequest):
    """An export of a model, whatever the plan."""

    width_mode: Annotated[
        options.WidthMode | None,
        Option(
            "For plans that remove neurons: uniform (every reader), per-layer, or ragged. "
            "Default: uniform."
        ),
    ] = None
    width_multiple_of: options.WidthMultipleOf = 8


class ExportRequest(PrunedRequest):
    """An export of a plan; `plan` is the content of plan.json, `recipe` the text of a recipe."""

    plan: dict[str, Any]
    recipe: str = Field(default="", max_length=1 << 20)

    def command(self, plan: str = "plan.json") -> str:
        """The equivalent command line; `plan` names the file that holds the plan."""
        words = option_words(self)
        return command_line("export", self.model, "--plan", plan, str(self.out), *words)


def option_words(
    request: Request, leave_out: Iterable[str] = (), only: Iterable[str] = ()
) -> Iterator[str]:
    """Options of a command line that ask the same; defaults are left out.

    Args:
        request: what is asked for.
        leave_out: fields that the command line says in another way.
        only: fields to say; without any, all.
    """
    fields = type(request).model_fields
    names = [name for name in only or fields if name not in leave_out]
    for name in sorted(names, key=lambda each: not fields[each].is_required()):
        option, value = option_of(fields[name]), getattr(request, name)
        if option is None or option.place or value is None or value == fields[name].default:
            continue
        flag, *off = flags_of(name, fields[name])
        if isinstance(value, bool):
            yield flag if value else off[0]
        else:
            for item in value if isinstance(value, tuple) else (value,):
                yield from (flag, f"{item:g}" if isinstance(item, float) else str(item))


def seq_len_of(corpus: str, asked: int | None) -> int:
    """Tokens of a sequence of a corpus: as asked, else a preset's own, else the default.

    Raises:
        CorpusError: the corpus is unknown.
    """
    preset = parse_corpus(corpus).preset
    return asked or (preset.seq_len if preset else DEFAULT_SEQ_LEN)


def repeated(option: str, values: Iterable[str]) -> list[str]:
    """Words of an option that is given once for each value."""
    return [word for value in values for word in (option, value)]


def command_line(*words: str) -> str:
    """A command of this program, quoted for a shell."""
    return shlex.join(("moeprune", *words))


def validated(kind: type[Kind], values: dict[str, Any]) -> Kind:
    """A request from untrusted values.

    Raises:
        UserError: one line that names the first bad field.
    """
    try:
        return kind(**values)
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        raised = problem.get("ctx", {}).get("error")
        if isinstance(raised, ValueError) and isinstance(raised.__cause__, UserError):
            raise raised.__cause__ from error
        raise UserError(_in_one_line(kind, problem)) from error


def _in_one_line(kind: type[Request], problem: Any) -> str:
    message = str(problem["msg"]).removeprefix("Value error, ").rstrip(".")
    if not problem["loc"]:
        return f"{message}."  # of several fields, which the message names
    name = str(problem["loc"][0])
    field = kind.model_fields.get(name)
    option = option_of(field) if field else None
    flag = f"--{name.replace('_', '-')}"
    written = (
        option.place if option and option.place else flags_of(name, field)[0] if field else flag
    )
    return f"{written}: {message} (got {problem['input']!r})."
