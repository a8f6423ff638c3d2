"""The part that all requests about a model share, and the requests for its weights and exports."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar

from pydantic import BeforeValidator, Field, ValidationInfo, field_validator, model_validator

from analysis.files.home import from_home
from analysis.files.shipped import DEMO_MODEL
from pruning.option import Option
from pruning.spec import options, plan_options
from pruning.spec.base import Request, command_line, is_plan, option_words, repeated


class ActionRequest(Request):
    """What an action is asked."""

    asked_by: ClassVar[str] = ""  # the action, which is also the equivalent command
    writes: ClassVar[str] = ""  # default name of the file that it writes; empty for none

    @property
    def partials(self) -> tuple[str, ...]:
        """What to delete unless a job of it succeeds."""
        return ()

    @property
    def num_plans(self) -> int:
        """How many plans it has."""
        fields = type(self).model_fields
        plans = [getattr(self, name) for name in fields if is_plan(fields[name])]
        return sum(len(plan) if isinstance(plan, tuple) else 1 for plan in plans)


class ActionOptions(Request):
    """What an action is asked in a command and in a recipe alike: the keys of its section."""


class ModelRequest(ActionRequest):
    """A request about a model."""

    model: options.Model
    revision: options.Revision | None = None

    def command(self, plans: Sequence[str] = ("plan.json",), out: str = "") -> str:
        """The equivalent command line; `plans` names the files that hold the request's plans."""
        plan_words = repeated("--plan", plans[: self.num_plans])
        target = ("-o", out or self.writes) if self.writes else ()
        return command_line(self.asked_by, self.model, *plan_words, *option_words(self), *target)


class WeightsRequest(ModelRequest):
    """Weight statistics of a model."""

    asked_by = "weights"
    stats_dir: options.StatsDir | None = None


def _named(value: Any) -> Any:
    if value == "":  # of which a path makes the working directory
        raise ValueError("it is empty; name a folder")
    return str(from_home(value)) if isinstance(value, str | Path) else value


class ExportOptions(ActionOptions):
    """Where an export goes, and what it holds besides the weights."""

    out: Annotated[Path, BeforeValidator(_named), Option("New folder to write.", place="OUT")]
    mtp: options.HeadsKept | None = None
    hash_source: options.HashSource = False
    max_shard_size: options.MaxShardSize | None = None
    pad: options.Pad = False
    dequantise: options.Dequantise = False
    keep_list: options.KeepList = False
    gguf: options.GgufType | None = None
    quantised_as: options.QuantisedAs | None = None
    recipe_corpora: options.RecipeCorpora = ()
    verify: options.Verify = False
    stream_layers: options.VerifyByLayers = False


class ExportRequest(ExportOptions, ModelRequest):
    """An export of a plan; `recipe` is the text of a recipe.

    The plan is one of `model`, see `plan_for_copy`, whatever `plan_model` it was made for.
    """

    asked_by = "export"
    plan: options.Plan
    width_mode: Annotated[
        plan_options.WidthMode | None,
        Option("For plans that remove neurons; every engine reads uniform. Default: uniform."),
    ] = None
    width_multiple_of: plan_options.WidthMultipleOf = 8
    top_k: plan_options.TopK | None = None
    llama_cpp: options.LlamaCpp | None = None
    stats_dir: options.StatsDir | None = None
    plan_model: Annotated[
        options.Text | None,
        Option(
            "The model that the plan was made for, if MODEL is a quantised copy of it that cannot "
            "be calibrated.",
            takes="MODEL",
        ),
    ] = None
    plan_model_revision: Annotated[
        options.Revision | None,
        Option("Revision of --plan-model, if that is a hub model.", takes="REVISION"),
    ] = None
    recipe: str = Field(default="", max_length=1 << 20)

    @model_validator(mode="after")
    def _converter_has_its_type(self) -> "ExportRequest":
        if self.llama_cpp and not self.gguf:
            raise ValueError("--llama-cpp goes with --gguf TYPE; add that, or leave it out")
        return self

    @model_validator(mode="after")
    def _files_beside_have_a_name(self) -> "ExportRequest":
        if (self.gguf or self.quantised_as) and self.out.name in ("", ".."):
            raise ValueError(
                f"files beside {self.out} would be named after it; name that folder from outside"
            )
        return self

    @model_validator(mode="after")
    def _corpora_have_their_recipe(self) -> "ExportRequest":
        if self.recipe_corpora and self.quantised_as in (None, "fp8"):
            raise ValueError("--recipe-corpus goes with --recipe nvfp4 or awq")
        return self

    @field_validator("plan_model_revision")
    @classmethod
    def _has_its_model(cls, value: str | None, info: ValidationInfo) -> str | None:
        if value and info.data.get("plan_model") is None:
            raise ValueError("it goes with --plan-model")
        return value

    @field_validator("out")
    @classmethod
    def _hides_no_model(cls, out: Path, info: ValidationInfo) -> Path:
        model = info.data.get("model", "")
        if out in (Path(model), Path(DEMO_MODEL)) and not out.exists():
            raise ValueError(
                f"a folder {out} would be read in place of the model of that name; name another, "
                f"such as {out.name}-pruned"
            )
        return out

    @property
    def partials(self) -> tuple[str, ...]:
        """The folder that is written, until it is complete."""
        return (f"{self.out}.partial",)

    def command(self, plans: Sequence[str] = ("plan.json",), out: str = "") -> str:
        """The equivalent command line; `plans` names the file that holds the plan."""
        words = option_words(self)
        return command_line("export", self.model, "--plan", *plans, out or str(self.out), *words)
