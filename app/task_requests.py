"""Requests: what a person asked for, validated, and the command line that asks the same."""

import shlex
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from analysis.criteria import get_criterion
from analysis.errors import UserError
from analysis.sparsity import parse_sparsity
from analysis.stats import Gate

DEFAULT_TOKENS = 65_536
DEFAULT_SEQ_LEN = 256
Text = Annotated[str, Field(min_length=1, max_length=4096)]


class _Request(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class CalibrateRequest(_Request):
    """One calibration: a model on one corpus."""

    model: Text
    corpus: Text
    tokens: int = Field(default=DEFAULT_TOKENS, ge=2, le=10**10)
    seq_len: int = Field(default=DEFAULT_SEQ_LEN, ge=2, le=10**6)
    seed: int = Field(default=42, ge=0, lt=2**63)
    dtype: str = "auto"
    device: str = "auto"
    batch_size: int = Field(default=8, ge=1, le=4096)
    revision: str | None = None
    trust_remote_code: bool = False
    resume: bool = True
    stats_dir: Path | None = None

    def command(self) -> str:
        """The equivalent command line."""
        return _command("calibrate", self.model, *_options(self, "model"))


class WeightsRequest(_Request):
    """Weight statistics of a model."""

    model: Text
    revision: str | None = None
    stats_dir: Path | None = None

    def command(self) -> str:
        """The equivalent command line."""
        return _command("weights", self.model, *_options(self, "model"))


class OverlapRequest(_Request):
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


class SelectRequest(OverlapRequest):
    """A criterion, the statistics that it reads, and how much goes."""

    criterion: Text
    runs: tuple[Text, ...] = ()
    schedule: Literal["uniform"] = "uniform"

    def options(self) -> list[str]:
        """Options that `score`, `overlap` and `plan` share, defaults left out."""
        options = ["--criterion", self.criterion]
        for corpus in self.corpora:
            options += ["--corpus", corpus]
        for run in self.runs:
            options += ["--run", run]
        if self.gate != "applied":
            options += ["--gate", self.gate]
        return options

    def command(self, out: str = "plan.json") -> str:
        """The command line that writes the plan."""
        place = ["--stats-dir", str(self.stats_dir)] if self.stats_dir else []
        return _command(
            "plan", self.model, *self.options(), "--sparsity", self.sparsity, *place, "-o", out
        )


class ExportRequest(_Request):
    """An export of a plan; `plan` is the content of plan.json."""

    model: Text
    plan: dict[str, Any]
    out: Path
    hash_source: bool = False
    verify: bool = True
    revision: str | None = None

    def command(self, plan: str = "plan.json") -> str:
        """The equivalent command line; `plan` names the file that holds the plan."""
        options = ["--hash-source"] if self.hash_source else []
        options += ["--verify"] if self.verify else []
        return _command("export", self.model, "--plan", plan, str(self.out), *options)


def _options(request: _Request, *positional: str) -> Iterator[str]:
    for name, field in type(request).model_fields.items():
        value = getattr(request, name)
        if name in positional or value == field.default or value is None:
            continue
        flag = name.replace("_", "-")
        yield f"--no-{flag}" if value is False else f"--{flag}"
        if not isinstance(value, bool):
            yield str(value)


def _command(*words: str) -> str:
    return shlex.join(("moeprune", *words))


def validated(kind: type[_Request], values: dict[str, Any]) -> Any:
    """A request from untrusted values.

    Raises:
        UserError: one line that names the first bad field.
    """
    try:
        return kind(**values)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        field = ".".join(str(part) for part in first["loc"]) or "request"
        raise UserError(f"{field}: {first['msg']} (got {first['input']!r}).") from error
