"""Requests: what a person asked for, validated, and the command line that asks the same."""

import re
import shlex
from collections.abc import Iterable, Iterator
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    field_validator,
    model_validator,
)

from analysis.attention import Attention
from analysis.corpora import Count, Packing, Sampling, Truncate, parse_corpus
from analysis.criteria import get_criterion
from analysis.errors import UserError
from analysis.sparsity import parse_sparsity
from analysis.stats.groups import GROUPS, misfit, parse_groups
from analysis.stats.tables import Gate
from pruning.constraints import parse_numbers

DEFAULT_TOKENS = 65_536
DEFAULT_SEQ_LEN = 256
DEFAULT_SEED = 42
DEFAULT_ANSWER_TOKENS = 256
_DEVICE_SIZE = re.compile(r"[^=]+=\d+(\.\d+)?[KMGT]i?B")
# Fields whose option is not their name with dashes.
_FLAGS = {"corpora": "--corpus", "runs": "--run"}
# In messages: an export's `out` has no option of that name.
_PLACES = {"model": "MODEL", "out": "OUT"}
Text = Annotated[str, Field(min_length=1, max_length=4096)]


def _device_size(value: str) -> str:
    """A limit such as 0=20GiB; a ValueError says how to write one."""
    if not _DEVICE_SIZE.fullmatch(value):
        raise ValueError("write DEVICE=SIZE, as 0=20GiB or cpu=8GiB")
    return value


MaxMemory = tuple[Annotated[str, AfterValidator(_device_size)], ...]


def check_spread(
    device_map: str | None, max_memory: tuple[str, ...], offload_folder: Path | None
) -> None:
    """Refuse limits and a folder of weights that are not spread, by a ValueError."""
    if (offload_folder or max_memory) and not device_map:
        raise ValueError("--offload-folder and --max-memory need --device-map auto")


class Request(BaseModel):
    """Values of a person, checked; unknown ones are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class CalibrateRequest(Request):
    """One calibration: a model on one corpus.

    What is not given of tokens, sequence length and seed is the preset's, or the default.
    """

    model: Text
    corpus: Text
    tokens: int | None = Field(default=None, ge=2, le=10**10)
    seq_len: int | None = Field(default=None, ge=2, le=10**6)
    seed: int | None = Field(default=None, ge=0, lt=2**63)
    packing: Packing = "auto"
    truncate: Truncate | None = None
    count: Count = "all"
    answers: Literal["given", "own"] = "given"
    answer_tokens: int | None = Field(default=None, ge=1, le=65_536)
    select: Literal["kmeans"] | None = None
    clusters: int | None = Field(default=None, ge=1, le=4096)
    groups: str = "routed"
    dtype: str = "auto"
    device: str = "auto"
    batch_size: int = Field(default=8, ge=1, le=4096)
    attention: Attention = "auto"
    device_map: Text | None = None
    max_memory: MaxMemory = ()
    offload_folder: Path | None = None
    stream_layers: bool = False
    hidden_states_dir: Path | None = None
    expert_parallel: bool = False
    checkpoint_activations: bool = False
    revision: str | None = None
    trust_remote_code: bool = False
    allow_test_set: bool = False
    resume: bool = True
    stats_dir: Path | None = None

    @field_validator("groups")
    @classmethod
    def _known_groups(cls, value: str) -> str:
        if not value.strip(" ,"):
            raise ValueError(f"name one of {', '.join(GROUPS)}, or leave the option out")
        return ",".join(parse_groups(value))

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
            CorpusError: the corpus is unknown, or the values do not fit together.
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
        return command_line("calibrate", self.model, *option_words(self, "model"))


class WeightsRequest(Request):
    """Weight statistics of a model."""

    model: Text
    revision: str | None = None
    stats_dir: Path | None = None

    def command(self) -> str:
        """The equivalent command line."""
        return command_line("weights", self.model, *option_words(self, "model"))


class OverlapRequest(Request):
    """Pruned sets of several corpora, to be compared; without a criterion, of all variants."""

    model: Text
    criterion: Text | None = None
    corpora: tuple[Text, ...] = ()
    gate: Gate = "applied"
    sparsity: str
    revision: str | None = None
    stats_dir: Path | None = None

    @field_validator("criterion")
    @classmethod
    def _known_criterion(cls, value: str | None) -> str | None:
        if value is not None:
            get_criterion(value)
        return value

    @field_validator("sparsity")
    @classmethod
    def _valid_sparsity(cls, value: str) -> str:
        parse_sparsity(value)
        return value

    @property
    def fraction(self) -> Fraction:
        """The sparsity as an exact number."""
        return parse_sparsity(self.sparsity)


class ExportRequest(Request):
    """An export of a plan; `plan` is the content of plan.json, `recipe` the text of a recipe."""

    model: Text
    plan: dict[str, Any]
    recipe: str = Field(default="", max_length=1 << 20)
    out: Path
    mtp: Literal["keep", "drop", "prune"] | None = None
    hash_source: bool = False
    max_shard_size: str | None = Field(default=None, max_length=32)
    keep_list: bool = False
    verify: bool = True
    revision: str | None = None
    width_mode: Literal["uniform", "per-layer", "ragged"] | None = None
    width_multiple_of: int = Field(default=8, ge=1, le=1 << 16)

    def command(self, plan: str = "plan.json") -> str:
        """The equivalent command line; `plan` names the file that holds the plan."""
        options = ["--mtp", self.mtp] if self.mtp else []
        if self.width_mode:
            options += ["--width-mode", self.width_mode]
            options += ["--width-multiple-of", str(self.width_multiple_of)]
        options += ["--hash-source"] if self.hash_source else []
        options += ["--max-shard-size", self.max_shard_size] if self.max_shard_size else []
        options += ["--keep-list"] if self.keep_list else []
        options += ["--verify"] if self.verify else []
        return command_line("export", self.model, "--plan", plan, str(self.out), *options)


def option_words(request: Request, *positional: str) -> Iterator[str]:
    """Options of a command line that ask the same; defaults and `positional` are left out."""
    for name, field in type(request).model_fields.items():
        value = getattr(request, name)
        if name in positional or value == field.default or value is None:
            continue
        flag = _flag(name).removeprefix("--")
        if isinstance(value, tuple):
            for item in value:
                yield from (f"--{flag}", str(item))
            continue
        yield f"--no-{flag}" if value is False else f"--{flag}"
        if not isinstance(value, bool):
            yield str(value)


def seq_len_of(corpus: str, asked: int | None) -> int:
    """Tokens of a sequence of a corpus: as asked, else a preset's own, else the default.

    Raises:
        CorpusError: the corpus is unknown.
    """
    preset = parse_corpus(corpus).preset
    return asked or (preset.seq_len if preset else DEFAULT_SEQ_LEN)


def layers_named(texts: Iterable[str]) -> frozenset[int]:
    """Layers of texts such as 0,5-7.

    Raises:
        PlanError: a text that cannot be read.
    """
    return frozenset[int]().union(*(parse_numbers(text, what="layers") for text in texts))


def repeated(option: str, values: Iterable[str]) -> list[str]:
    """Words of an option that is given once for each value."""
    return [word for value in values for word in (option, value)]


def _flag(name: str) -> str:
    return _FLAGS.get(name, f"--{name.replace('_', '-')}")


def command_line(*words: str) -> str:
    """A command of this program, quoted for a shell."""
    return shlex.join(("moeprune", *words))


def validated(kind: type[Request], values: dict[str, Any]) -> Any:
    """A request from untrusted values.

    Raises:
        UserError: one line that names the first bad field.
    """
    try:
        return kind(**values)
    except ValidationError as error:
        raise UserError(_in_one_line(error)) from error


def _in_one_line(error: ValidationError) -> str:
    first = error.errors(include_url=False, include_context=False)[0]
    message = str(first["msg"]).removeprefix("Value error, ").rstrip(".")
    if not first["loc"]:
        return f"{message}."  # of several fields, which the message names
    field = str(first["loc"][0])
    written = _PLACES.get(field) or _flag(field)
    return f"{written}: {message} (got {first['input']!r})."
