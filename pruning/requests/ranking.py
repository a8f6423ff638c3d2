"""Requests to rank: a criterion, and the statistics that it reads."""

from fractions import Fraction
from typing import Annotated

from analysis.sparsity import parse_sparsity
from pruning.requests import options
from pruning.requests.base import Option
from pruning.requests.model import ModelRequest


class OverlapRequest(ModelRequest):
    """Pruned sets of several corpora, to be compared; without a criterion, of all variants."""

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


class ScoreRequest(RankRequest):
    """Scores of experts or neurons."""

    granularity: Annotated[
        options.Granularity, Option("What is scored: whole experts (expert), or neurons (atomic).")
    ] = "expert"


class BlendRequest(RankRequest):
    """Corpora to mix, and the sparsity at which they are judged."""

    sparsity: options.Sparsity
