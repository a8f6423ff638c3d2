"""Requests to benchmark: tasks of lm-evaluation-harness, and results of other tools taken in."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from pydantic import Field, field_validator, model_validator

from pruning.evaluate.benchmarks.record import FULL
from pruning.requests.base import Request, Text, command_line, option_words, repeated

MOST_TASKS = 100
# How the names of tasks begin that lm-evaluation-harness marks as running what the model writes.
RUNS_CODE: Final = ("humaneval", "mbpp", "cruxeval", "longproc")


class BenchmarkRequest(Request):
    """A model or an export and the benchmarks that it is given; each plan is masked in the model.

    `tasks` are names joined by commas; without any, those of the demo's own texts, for the demo.
    Without plans, the model itself. `source` is the full model of an export.
    """

    model: Text
    plans: tuple[dict[str, Any], ...] = ()
    tasks: str = Field(default="", max_length=4096)
    limit: float | None = Field(default=None, gt=0, le=10**9)
    num_fewshot: int | None = Field(default=None, ge=0, le=100)
    chat_template: bool = False
    source: Text | None = None
    dtype: str = "auto"
    device: str = "auto"
    batch_size: int = Field(default=8, ge=1, le=4096)
    revision: str | None = None
    trust_remote_code: bool = False
    allow_test_set: bool = False
    stats_dir: Path | None = None

    @field_validator("tasks")
    @classmethod
    def _distinct_names(cls, value: str) -> str:
        names = dict.fromkeys(name.strip() for name in value.split(","))
        names.pop("", None)
        if len(names) > MOST_TASKS:
            raise ValueError(f"name at most {MOST_TASKS} tasks")
        if unsafe := [name for name in names if name.startswith(RUNS_CODE)]:
            raise ValueError(
                f"{unsafe[0]} runs code that the model writes, which is refused here; run it with "
                "lm-evaluation-harness where that may be done, and take its results in with "
                "--import"
            )
        return ",".join(names)

    @field_validator("limit")
    @classmethod
    def _whole_or_a_share(cls, value: float | None) -> float | None:
        if value is not None and value >= 1 and value != int(value):
            raise ValueError("give a whole number of questions, or a share of them below 1")
        return value

    @property
    def names(self) -> tuple[str, ...]:
        """The tasks that are named."""
        return tuple(filter(None, self.tasks.split(",")))

    def command(self, plans: Sequence[str] = ("plan.json",)) -> str:
        """The equivalent command line; `plans` names the files that hold the plans."""
        named = repeated("--plan", plans[: len(self.plans)])
        own = list(option_words(self, "model", "plans", "limit"))
        own += [] if self.limit is None else ["--limit", f"{self.limit:g}"]
        return command_line("benchmark", self.model, *named, *own)


class ImportRequest(Request):
    """Results of another tool: files, and what of a model they are of.

    `plan` says what was pruned, or `candidate` in words; without both, nothing was.
    """

    model: Text
    files: tuple[Path, ...] = Field(min_length=1, max_length=1000)
    plan: dict[str, Any] | None = None
    candidate: str = Field(default="", max_length=200)
    source: Text | None = None
    revision: str | None = None
    stats_dir: Path | None = None

    @model_validator(mode="after")
    def _one_of_both(self) -> "ImportRequest":
        if self.plan is not None and self.candidate:
            raise ValueError("choose one of --plan, --candidate")
        if self.candidate == FULL:
            raise ValueError(f"leave --candidate out for the {FULL} model")
        return self
