"""Requests to benchmark: tasks of lm-evaluation-harness, and imported results of other tools."""

from pathlib import Path
from typing import Annotated, Any, Final

from pydantic import Field, field_validator, model_validator

from analysis.demo.tasks import LOCAL_TASKS
from pruning.benchmarks.record import FULL
from pruning.option import Option
from pruning.requests.model import ModelRequest
from pruning.spec import options

MOST_TASKS = 100
# Prefixes of tasks that, by lm-evaluation-harness, run code that the model writes.
RUNS_CODE: Final = ("humaneval", "mbpp", "cruxeval", "longproc")


Source = Annotated[
    options.Text, Option("Original model of an export, for sizes before and after.", takes="MODEL")
]


class BenchmarkRequest(ModelRequest):
    """Benchmarks of a model, of plans masked in it, or of an export.

    Tasks are by default the demo's own, for the demo. Without plans, the model itself. `source` is
    the original model of an export.
    """

    asked_by = "benchmark"
    plans: tuple[
        Annotated[
            options.Plan,
            Option("plan.json that is masked in the model; repeatable. Default: none."),
        ],
        ...,
    ] = ()
    repair: options.Repair = False
    tasks: Annotated[
        tuple[
            Annotated[
                options.Text,
                Option(
                    "Task or group of lm-evaluation-harness; repeatable. Default for the demo: "
                    f"{', '.join(LOCAL_TASKS)}.",
                    ("--task",),
                ),
            ],
            ...,
        ],
        options.SEVERAL,
        Field(max_length=MOST_TASKS),
        options.EACH_ONCE,
    ] = ()
    limit: Annotated[
        float | None,
        Field(gt=0, le=10**9),
        Option("Questions of each task, or a share of them below 1.", takes="QUESTIONS"),
    ] = None
    num_fewshot: Annotated[
        int | None,
        Field(ge=0, le=100),
        Option("Examples before each question; default: the task's own.", takes="EXAMPLES"),
    ] = None
    chat_template: Annotated[options.Switch, Option("Ask in the tokenizer's chat format.")] = False
    template_args: options.TemplateArgs = Field(default_factory=dict)
    source: Source | None = None
    dtype: options.Dtype = "auto"
    device: options.Device = "auto"
    batch_size: options.BatchSize = 8
    trust_remote_code: options.Trust = False
    allow_test_set: options.AllowTestSet = False
    stats_dir: options.StatsDir | None = None

    @field_validator("tasks")
    @classmethod
    def _can_be_run(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        if joined := [name for name in names if "," in name]:
            raise ValueError(f"{joined[0]} is no task; repeat the option for each")
        if unsafe := [name for name in names if name.startswith(RUNS_CODE)]:
            raise ValueError(
                f"{unsafe[0]} runs code that the model writes, which is refused here; run it with "
                "lm-evaluation-harness where that is safe, and import its results with --import"
            )
        return names

    @field_validator("limit")
    @classmethod
    def _whole_or_a_share(cls, value: float | None) -> float | None:
        if value is not None and value >= 1 and value != int(value):
            raise ValueError("give a whole number of questions, or a share of them below 1")
        return value

    @model_validator(mode="after")
    def _arguments_have_a_template(self) -> "BenchmarkRequest":
        if self.template_args and not self.chat_template:
            raise ValueError("--template-arg is of the chat format; add --chat-template")
        return self


class ImportRequest(ModelRequest):
    """Result files of another tool, and what they measured of a model.

    `plan`, or `candidate` in words, says what was pruned; without both, nothing was.
    """

    files: tuple[Path, ...] = Field(min_length=1, max_length=1000)
    plan: dict[str, Any] | None = None
    candidate: str = Field(default="", max_length=200)
    source: Source | None = None
    stats_dir: options.StatsDir | None = None

    @model_validator(mode="after")
    def _one_of_both(self) -> "ImportRequest":
        if self.plan is not None and self.candidate:
            raise ValueError("choose one of --plan, --candidate")
        if self.candidate == FULL:
            raise ValueError(f"leave --candidate out for the {FULL} model")
        return self
