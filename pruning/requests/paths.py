"""The request for a plan of the experts on the heaviest paths."""

from typing import Annotated

from pydantic import Field

from analysis.ranking.trajectory import PARTS, STEPS, Parts, Steps
from pruning.requests import options
from pruning.requests.base import Option
from pruning.requests.model import ModelRequest

PathWeights = Annotated[Parts, Option(f"What weighs a path: {', '.join(PARTS)}.")]
Transitions = Annotated[
    Steps,
    Option(f"Steps of a path between layers: {' or '.join(STEPS)} (where tokens really went on)."),
]
PathClusters = Annotated[
    int,
    Field(strict=True),
    Option("Follow only so many representative samples of each corpus, by k-means."),
]


class PathsRequest(ModelRequest):
    """The experts on the heaviest paths through the layers, of so many paths or of a budget."""

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
