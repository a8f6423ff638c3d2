"""Requests to rank experts, to follow their paths, to compare two plans and to draw them."""

from collections.abc import Mapping
from fractions import Fraction
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from analysis.criteria import check_ranks
from analysis.criteria.trajectory import Parts, Steps
from analysis.numbers.sparsity import parse_sparsity
from pruning.measures.names import MeasureName
from pruning.option import Option
from pruning.requests.model import ModelRequest
from pruning.requests.plan import check_criterion
from pruning.spec import options, plan_options
from pruning.spec.base import flags_of, nested
from pruning.spec.spec import BUDGETS, PlanSpec, RankingSpec


class OverlapRequest(ModelRequest):
    """The overlap of pruned sets of corpora; without a criterion, for all variants."""

    criterion: Annotated[
        options.Criterion | None, Option("One criterion; default: all 17 rankable variants.")
    ] = None
    corpora: tuple[options.CalibratedOn, ...] = ()
    runs: tuple[options.Run, ...] = ()
    gate: options.Gate = "applied"
    sparsity: plan_options.Sparsity
    stats_dir: options.StatsDir | None = None

    @property
    def fraction(self) -> Fraction:
        """The sparsity as an exact number."""
        return parse_sparsity(self.sparsity)


class RankRequest(ModelRequest):
    """A criterion, and the statistics that it reads."""

    ranking: RankingSpec
    stats_dir: options.StatsDir | None = None

    @model_validator(mode="after")
    def _ranks(self) -> "RankRequest":
        check_criterion(self.ranking, self.asked_by)
        check_ranks(self.ranking.rule, self.ranking.granularity)
        return self


class ScoreRequest(RankRequest):
    """Scores of experts or neurons."""

    asked_by = "score"


class BlendRequest(RankRequest):
    """Corpora to blend, and the sparsity at which blends are compared."""

    asked_by = "blend"
    sparsity: plan_options.Sparsity

    @model_validator(mode="after")
    def _is_of_experts(self) -> "BlendRequest":
        if self.ranking.by_neuron:
            raise ValueError("blends are compared by experts; leave --granularity out")
        return self


PathWeights = Annotated[Parts, Option("Weights of a path.", ("--path-weights",))]
Transitions = Annotated[
    Steps,
    Option("Transitions between layers: the paper's, or measured (counted in calibration)."),
]
PathClusters = Annotated[
    int,
    Field(strict=True),
    Option("Follow only so many representative samples of each corpus, by k-means.", takes="N"),
]


class PathsRequest(ModelRequest):
    """The experts on the heaviest paths through the layers, by number of paths or by budget."""

    top_m: Annotated[
        int | None,
        Field(strict=True),
        Option(
            "Paths of each sample: the plan is all that lies on them, or with --sparsity the "
            "budget cut from it.",
            takes="PATHS",
        ),
    ] = None
    sparsity: Annotated[
        plan_options.Sparsity | None,
        Option(
            "Budget: fraction of experts removed, 0.5 or 50%; without --top-m, as many paths "
            "as it takes."
        ),
    ] = None
    shrink: plan_options.Shrink | None = None
    weights: PathWeights = "both"
    transitions: Transitions = "paper"
    clusters: PathClusters | None = None
    schedule: Annotated[
        Literal["global", "global-rescaled", "uniform", "early", "middle", "late"],
        Option(
            "How a budget is spread.",
            takes="global|global-rescaled|uniform|early|middle|late",
            heading="Layers",
        ),
    ] = "global"
    corpora: tuple[
        Annotated[
            options.CalibratedOn,
            Option("Calibrated corpus whose samples are followed; repeatable."),
        ],
        ...,
    ] = ()
    runs: tuple[options.Run, ...] = ()
    stats_dir: options.StatsDir | None = None

    @model_validator(mode="after")
    def _spreads_a_budget(self) -> "PathsRequest":
        if "schedule" in self.model_fields_set and self.sparsity is None and self.shrink is None:
            raise ValueError("--schedule spreads a budget; add --sparsity, or leave it out")
        return self


WithCriterion = Annotated[
    options.Criterion,
    Option(
        "Criterion of the second plan: a name, or b,alpha,beta.",
        ("--with-criterion",),
        takes="CRITERION",
    ),
]


class SecondRequest(ModelRequest):
    """A second plan to compare with: of a file, or one that inherits what it does not say."""

    with_criterion: WithCriterion | None = None
    with_corpora: Annotated[
        tuple[options.CalibratedOn, ...],
        Option(
            "Calibrated corpus of the second plan; repeatable. Default: the first one's.",
            ("--with-calibrated-on",),
            takes="CORPUS[:WEIGHT]",
        ),
    ] = ()
    with_gate: Annotated[
        options.Gate | None, Option("Gate weights of the second plan; default: the same.")
    ] = None
    with_sparsity: Annotated[
        plan_options.Sparsity | None,
        Option(
            "Sparsity of the second plan; default: the same.",
            ("--with-sparsity",),
            takes="FRACTION",
        ),
    ] = None
    with_plan: Annotated[
        dict[str, Any] | None,
        Option("plan.json of the second plan, as it is.", ("--with-plan",), file="plan"),
    ] = None
    stats_dir: options.StatsDir | None = None


class TwoPlansRequest(SecondRequest):
    """A plan and a second one, as a person asks for them."""

    plan: PlanSpec

    @model_validator(mode="after")
    def _a_file_says_all(self) -> "TwoPlansRequest":
        others = (name for name in _OF_SECOND if name in self.model_fields_set)
        if self.with_plan is not None and (extra := next(others, "")):
            flag = flags_of(extra, type(self).model_fields[extra])[0]
            raise ValueError(f"--with-plan is a whole plan; leave {flag} out")
        return self


_OF_SECOND = ("with_criterion", "with_corpora", "with_gate", "with_sparsity")


class CompareRequest(TwoPlansRequest):
    """Two plans to compare."""

    asked_by = "compare"

    @model_validator(mode="before")
    @classmethod
    def _is_of_a_model(cls, values: Any) -> Any:
        model = str(values.get("model", "")) if isinstance(values, Mapping) else ""
        if model.endswith(".json"):
            raise ValueError(
                f"{model} is no model; `moeprune plans diff A B` compares plans, `moeprune compare "
                "MODEL` criteria"
            )
        return values

    @model_validator(mode="after")
    def _ranks_experts(self) -> "CompareRequest":
        check_criterion(self.plan.ranking, self.asked_by)
        if self.with_criterion is None and self.with_plan is None:
            raise ValueError("name the second plan with --with-criterion or --with-plan")
        if self.plan.by_neuron and self.with_plan is None:
            raise ValueError(
                "a plan of neurons is compared with the file of another: give --with-plan, or "
                "leave --granularity out"
            )
        return self


class DrawRequest(TwoPlansRequest):
    """A plan to draw figures of, half of the experts by default, and a second one."""

    with_criterion: WithCriterion = "frequency"

    @model_validator(mode="before")
    @classmethod
    def _half(cls, values: Any) -> Any:
        values = nested(cls, values) if isinstance(values, Mapping) else values
        plan = values.get("plan") if isinstance(values, dict) else None
        if not isinstance(plan, dict):
            return values
        has_file = {"schedule_file", "kept_experts", "kept_neurons"} & plan.get("spread", {}).keys()
        if has_file or set(BUDGETS) & plan.get("budget", {}).keys():
            return values
        return {**values, "plan": {**plan, "budget": {**plan.get("budget", {}), "sparsity": HALF}}}


HALF = "50%"  # the sparsity of figures


class ReportRequest(DrawRequest):
    """Two plans to report on, and the views of a report."""

    views: Annotated[
        tuple[str, ...],
        Option("View of `moeprune plot --list`; repeatable; default: all of a model.", ("--view",)),
    ] = ()
    title: Annotated[str, Option("Heading of the page.")] = "Pruning report"
    story: Annotated[
        bool, Option("Write the findings of the page Story instead, to click through offline.")
    ] = False

    @model_validator(mode="after")
    def _a_story_is_of_one_plan(self) -> "ReportRequest":
        others = ("with_plan", *_OF_SECOND)
        if self.story and (given := [name for name in others if name in self.model_fields_set]):
            flag = flags_of(given[0], type(self).model_fields[given[0]])[0]
            raise ValueError(f"--story tells of one plan; leave {flag} out")
        return self


class PlotRequest(DrawRequest):
    """Two plans to draw, or a table of the papers' results."""

    model: Annotated[
        options.Model,
        Option(
            "Checkpoint directory, hub id, or `demo`; of views of the papers' results, one of "
            "their tables, such as unified-table-5."
        ),
    ]
    block: Annotated[
        str | None, Option("Block of a paper's table, 'MODEL SPARSITY%'; default: its first.")
    ] = None
    measure: Annotated[
        MeasureName | None,
        Option("Views of evaluations: the measure to draw."),
    ] = None
    evaluated_on: Annotated[
        options.Text | None, Option("View pareto: corpus of the evaluations.", takes="CORPUS")
    ] = None
    against: Annotated[
        Literal["removed", "bytes", "active_params", "expert_flops"],
        Option("View evaluation-curves: what it has below."),
    ] = "removed"
    draw: Annotated[
        options.Text | None,
        Option("View hidden-states: which measurement, by its name.", takes="NAME"),
    ] = None
    lines: Annotated[
        tuple[options.Text, ...],
        Option("View hidden-states: candidate to show; repeatable.", ("--line",), takes="NAME"),
    ] = ()
    way: Annotated[
        options.Text | None,
        Option("View own-capability: the benchmark tool and settings.", takes="NAME"),
    ] = None
    at: Annotated[
        options.Text | None,
        Option("View own-capability: sparsity of the candidates, or all.", takes="FRACTION"),
    ] = None
    text: Annotated[
        options.Text | None,
        Option(
            "Views of a text: the lens to draw; default: the first of the plan.",
            ("--lens-id",),
            takes="ID",
        ),
    ] = None
    token: Annotated[
        int | None,
        Field(strict=True, ge=2),
        Option(
            "View text-experts: the token, from 2; default: the one that costs most.", takes="N"
        ),
    ] = None
    token_text: Annotated[
        options.Text | None,
        Option("View token-experts: the token; default: the most frequent word.", takes="TEXT"),
    ] = None
    pair: Annotated[
        tuple[options.Text, ...],
        Option(
            "Views pair-map and pair-agreement: a calibrated corpus; repeatable, twice. Default: "
            "those that agree least.",
            takes="CORPUS",
        ),
    ] = ()
    panels: Annotated[
        tuple[options.Criterion, ...],
        Option(
            "View stratification: criterion of a panel; repeatable; default: aimer, magnitude.",
            ("--panel",),
        ),
    ] = ()
    scale: Annotated[
        Literal["rescaled", "relative", "raw"],
        Option(
            "View stratification: scores rescaled to 0..1 in each layer, relative to the layer's "
            "mean, or raw."
        ),
    ] = "rescaled"
    top_m: Annotated[
        int | None,
        Field(strict=True),
        Option("View paths: of each sample; default: 100.", takes="PATHS"),
    ] = None
    weights: PathWeights = "both"
    transitions: Transitions = "paper"
    clusters: PathClusters | None = None
