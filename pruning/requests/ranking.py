"""Requests to rank experts, to follow their paths, and to compare two recipes."""

from fractions import Fraction
from typing import Annotated, Any

from pydantic import Field

from analysis.ranking.trajectory import PARTS, STEPS, Parts, Steps
from analysis.sparsity import parse_sparsity
from pruning.requests import options
from pruning.requests.base import Option
from pruning.requests.model import ModelRequest


class OverlapRequest(ModelRequest):
    """The overlap of pruned sets of corpora; without a criterion, for all variants."""

    criterion: Annotated[
        options.Criterion | None, Option("One criterion; default: all 17 rankable variants.")
    ] = None
    corpora: tuple[options.WeighedCorpus, ...] = ()
    runs: tuple[options.Run, ...] = ()
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


class ConstrainedRequest(ModelRequest):
    """What plans must respect besides their budget.

    Of neurons, multiple and floor apply to each expert.
    """

    multiple_of: options.MultipleOf = 1
    floor: options.Floor = 0
    protect: tuple[options.Protect, ...] = ()
    pin: tuple[options.Pin, ...] = ()
    drop: tuple[options.Drop, ...] = ()
    layer_set: tuple[options.LayerSet, ...] = ()


LIMITS = tuple(ConstrainedRequest.__annotations__)


class ScoreRequest(RankRequest):
    """Scores of experts or neurons."""

    granularity: Annotated[
        options.Granularity,
        Option("Score whole experts (expert), or neurons inside them (neuron)."),
    ] = "expert"


class BlendRequest(RankRequest):
    """Corpora to blend, and the sparsity at which blends are compared."""

    sparsity: options.Sparsity


PathWeights = Annotated[Parts, Option(f"Weights of a path: {', '.join(PARTS)}.")]
Transitions = Annotated[
    Steps,
    Option(f"Transitions between layers: {' or '.join(STEPS)} (counted in calibration)."),
]
PathClusters = Annotated[
    int,
    Field(strict=True),
    Option("Follow only so many representative samples of each corpus, by k-means."),
]


class PathsRequest(ModelRequest):
    """The experts on the heaviest paths through the layers, by number of paths or by budget."""

    top_m: Annotated[
        int | None,
        Field(strict=True),
        Option(
            "Paths of each sample: the plan is all that lies on them, or with --sparsity the "
            "budget cut from it."
        ),
    ] = None
    sparsity: Annotated[
        options.Sparsity | None,
        Option(
            "Budget: fraction of experts removed, 0.5 or 50%; without --top-m, as many paths "
            "as it takes."
        ),
    ] = None
    shrink: options.Shrink | None = None
    weights: PathWeights = "both"
    transitions: Transitions = "paper"
    clusters: PathClusters | None = None
    schedule: Annotated[
        str, Option("How a budget is spread: global, uniform, early, middle, late.")
    ] = "global"
    corpora: tuple[
        Annotated[options.CorpusName, Option("Corpus whose samples are followed; repeatable.")], ...
    ] = ()
    runs: tuple[options.Run, ...] = ()
    stats_dir: options.StatsDir | None = None


WithCriterion = Annotated[
    options.Criterion,
    Option("Criterion of the second recipe: a name, or b,alpha,beta.", ("--with-criterion",)),
]


class PairRequest(ModelRequest):
    """Two recipes to rank by; the second inherits what it does not say."""

    corpora: tuple[options.WeighedCorpus, ...] = ()
    gate: options.Gate = "applied"
    with_corpora: Annotated[
        tuple[options.WeighedCorpus, ...],
        Option("Corpus of the second recipe; default: the first one's.", ("--with-corpus",)),
    ] = ()
    with_gate: Annotated[
        options.Gate | None, Option("Gate weights of the second recipe; default: the same.")
    ] = None
    with_sparsity: Annotated[
        options.Sparsity | None,
        Option("Sparsity of the second recipe; default: the same.", ("--with-sparsity",)),
    ] = None
    stats_dir: options.StatsDir | None = None

    def recipes(
        self, criterion: str, with_criterion: str, sparsity: str
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Fields of both as a `PlanRequest`; None in the second means as in the first."""
        first = {
            "model": self.model,
            "revision": self.revision,
            "criterion": criterion,
            "corpora": self.corpora,
            "gate": self.gate,
            "sparsity": sparsity,
            "stats_dir": self.stats_dir,
        }
        second = {
            "criterion": with_criterion,
            "corpora": self.with_corpora or None,
            "gate": self.with_gate,
            "sparsity": self.with_sparsity,
        }
        return first, second


class TwoRecipesRequest(PairRequest):
    """Two recipes to compare."""

    criterion: options.Criterion
    sparsity: options.Sparsity
    with_criterion: WithCriterion


class ReportRequest(PairRequest):
    """Two recipes to report on, and the views of a report."""

    criterion: options.Criterion = "reap"
    sparsity: options.Sparsity = "50%"
    with_criterion: WithCriterion = "frequency"
    views: Annotated[
        tuple[str, ...],
        Option("View of `moeprune plot --list`; repeatable; default: all of a model.", ("--view",)),
    ] = ()
    title: Annotated[str, Option("Heading of the page.")] = "Pruning report"


class PlotRequest(PairRequest):
    """Two recipes to draw, or a table of the papers' results."""

    model: Annotated[
        options.Model,
        Option(
            "Checkpoint directory, hub id, or `demo`; of views of the papers' results, one of "
            "their tables, such as unified-table-5."
        ),
    ]
    criterion: Annotated[
        options.Criterion | None,
        Option(
            "Name, such as reap or aimer, or exponents b,alpha,beta; default: reap, for views of "
            "neurons heapr."
        ),
    ] = None
    sparsity: options.Sparsity = "50%"
    with_criterion: WithCriterion = "frequency"
    block: Annotated[
        str | None, Option("Block of a paper's table, 'MODEL SPARSITY%'; default: its first.")
    ] = None
    top_m: Annotated[
        int | None, Field(strict=True), Option("View paths: of each sample; default: 100.")
    ] = None
    weights: PathWeights = "both"
    transitions: Transitions = "paper"
    clusters: PathClusters | None = None
