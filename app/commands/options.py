"""Options that several commands share, each with one meaning."""

from pathlib import Path
from typing import Annotated

import typer

from analysis.ranking.trajectory import PARTS, STEPS

Model = Annotated[
    str, typer.Argument(metavar="MODEL", help="Checkpoint directory, hub id, or `demo`.")
]
Revision = Annotated[str | None, typer.Option(help="Revision of a hub model.")]
StatsDir = Annotated[
    Path | None,
    typer.Option(
        help="Statistics folder; default: cached_stats/ here if there is one, else the user cache."
    ),
]
CriterionName = Annotated[
    str, typer.Option("--criterion", help="Name, such as reap or aimer, or exponents b,alpha,beta.")
]
Corpora = Annotated[
    list[str] | None,
    typer.Option("--corpus", help="Calibrated corpus, CORPUS or CORPUS:WEIGHT; repeatable."),
]
Runs = Annotated[
    list[str] | None, typer.Option("--run", help="Run id instead of a corpus; repeatable.")
]
GateOption = Annotated[
    str, typer.Option("--gate", help="Gate weights: applied (as the model uses) or renormalized.")
]
Sparsity = Annotated[str, typer.Option(help="Fraction of experts removed: 0.5 or 50%.")]
AllowTestSet = Annotated[
    bool,
    typer.Option(
        "--allow-test-set",
        help="Use the data of a benchmark's test set for something else, and say so in results.",
    ),
]
Out = Annotated[Path, typer.Option("--out", "-o", help="File to write.", dir_okay=False)]
OutTable = Annotated[
    Path, typer.Option("--out", "-o", help="File to write: .csv or .parquet.", dir_okay=False)
]
Granularity = Annotated[
    str, typer.Option(help="What is removed: whole experts (expert), or neurons (atomic).")
]
WithCorpora = Annotated[
    list[str] | None,
    typer.Option("--with-corpus", help="Corpus of the second recipe; default: the first one's."),
]
WithGate = Annotated[
    str | None, typer.Option(help="Gate weights of the second recipe; default: the same.")
]
WithSparsity = Annotated[
    str | None, typer.Option(help="Sparsity of the second recipe; default: the same.")
]
PathWeights = Annotated[str, typer.Option(help=f"What weighs a path: {', '.join(PARTS)}.")]
Transitions = Annotated[
    str,
    typer.Option(
        help=f"Steps of a path between layers: {' or '.join(STEPS)} (where tokens really went on)."
    ),
]
Clusters = Annotated[
    int | None,
    typer.Option(help="Follow only so many representative samples of each corpus, by k-means."),
]
DEFAULT_GATE = "applied"
