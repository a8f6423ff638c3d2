"""Requests about two recipes for one model: what is compared, drawn and reported."""

from typing import Annotated, Any

from pydantic import Field

from pruning.requests import options
from pruning.requests.base import Option
from pruning.requests.model import ModelRequest
from pruning.requests.paths import PathClusters, PathWeights, Transitions

WithCriterion = Annotated[
    options.Criterion,
    Option("Criterion of the second recipe: a name, or b,alpha,beta.", ("--with-criterion",)),
]


class PairRequest(ModelRequest):
    """What two recipes rank on; what the second one does not say is as in the first."""

    corpora: tuple[options.WeighedCorpus, ...] = ()
    gate: options.Gate = "applied"
    with_corpora: tuple[
        Annotated[
            options.WeighedCorpus,
            Option("Corpus of the second recipe; default: the first one's.", ("--with-corpus",)),
        ],
        ...,
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
        """Values of both, by the fields of `SelectRequest`; None of the second is as the first."""
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
    views: tuple[
        Annotated[
            str,
            Option(
                "A view of `moeprune plot --list`; repeatable; default: all of a model.",
                ("--view",),
            ),
        ],
        ...,
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
