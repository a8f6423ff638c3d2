"""What a person chose: the plan, and what pages and single charts show of it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal

from analysis.criteria import Criterion
from analysis.criteria.pathfinder import DEFAULT_PATHS
from analysis.criteria.trajectory import PAPER, Weighing
from analysis.errors import PlanError
from analysis.numbers.sparsity import parse_sparsity
from analysis.stats.columns import Gate
from pruning.planning.choice import HAND
from pruning.search.store import SEARCH
from pruning.spec.spec import PlanSpec

if TYPE_CHECKING:
    import pandas as pd

    from pruning.requests.ranking import PlotRequest, SecondRequest

BLEND: Final = "(blend)"  # name of the blend of all corpora; no file has it
# Shown beside the current criterion: the simplest, and the least corpus-dependent.
CURVE_BESIDE: Final = ("frequency", "man")
CONSTANT: Final = (1, 0, 0)  # the variant that gives every expert the same score
SAME_SCORE: Final = (
    "The variant (1, 0, 0) gives every expert the same score; choose other exponents."
)


@dataclass(frozen=True, slots=True)
class PathChoice:
    """Which paths are followed (MoE Pathfinder)."""

    count: int = DEFAULT_PATHS  # of each sample, the paper's m
    weighing: Weighing = PAPER  # what weighs a path
    clusters: int | None = None  # representative samples of each corpus; None: all of them

    @property
    def cache_key(self) -> str:
        """All of it."""
        return repr(self)

    def options(self) -> tuple[str, ...]:
        """The options of `moeprune paths` and `moeprune plot paths`."""
        words = ["--top-m", str(self.count)]
        if self.weighing.parts != PAPER.parts:
            words += ["--path-weights", self.weighing.parts]
        if self.weighing.steps != PAPER.steps:
            words += ["--transitions", self.weighing.steps]
        if self.clusters:
            words += ["--clusters", str(self.clusters)]
        return tuple(words)


@dataclass(frozen=True, eq=False)
class ResultChoice:
    """Which results charts of records show; empty or None is the default."""

    table: pd.DataFrame | None = None  # the results of the model, if already read
    measure: str = ""  # one of MEASURES
    corpus: str = ""  # evaluation corpus
    against: str = "removed"  # a key of `evaluation_curves.AXES`
    lit: Collection[str] | None = None  # highlighted series
    draw: str = ""  # of hidden states; see `draws_of`
    way: str = ""  # benchmark tool and settings
    removed: float | None = None  # sparsity of benchmarked candidates; ALL_SHARES: any
    text: str = ""  # record of the lens; see `text_lens.shown_lens`
    token: int | None = None  # of that text, from 1; None: the one that costs most

    @classmethod
    def asked(cls, request: PlotRequest) -> ResultChoice:
        """The results that a command line asks for; the inverse of `result_words`."""
        share = None
        if request.at is not None:
            share = ALL_SHARES if request.at == EVERY else float(parse_sparsity(request.at))
        return cls(
            measure=request.measure or "",
            corpus=request.evaluated_on or "",
            against=request.against,
            lit=request.lines or None,
            draw=request.draw or "",
            way=request.way or "",
            removed=share,
            text=request.text or "",
            token=request.token,
        )


def result_words(**options: str | None) -> tuple[str, ...]:
    """Options of `moeprune plot` with these values; None for those at their defaults."""
    pairs = [(f"--{name.replace('_', '-')}", value) for name, value in options.items()]
    return tuple(word for flag, value in pairs if value is not None for word in (flag, value))


def unless(value: str, usual: str) -> str | None:
    """A value that is not the usual one."""
    return None if value == usual else value


Scale = Literal["rescaled", "relative", "raw"]


@dataclass(frozen=True, slots=True)
class StrataChoice:
    """What the chart of stratification shows."""

    criteria: tuple[str, ...] = ("aimer", "magnitude")  # a panel each
    scale: Scale = "rescaled"  # the AIMER paper's

    def options(self) -> tuple[str, ...]:
        """The options of `moeprune plot stratification`."""
        words = [] if self.criteria == USUAL_STRATA.criteria else list(self.criteria)
        return (
            *(word for name in words for word in ("--panel", name)),
            *(() if self.scale == USUAL_STRATA.scale else ("--scale", self.scale)),
        )


def pair_words(pair: tuple[str, str]) -> tuple[str, ...]:
    """The options of `moeprune plot pair-map` for two corpora."""
    return tuple(word for corpus in pair for word in ("--pair", corpus))


@dataclass(frozen=True, slots=True)
class TokenChoice:
    """The token whose experts are searched in the scored texts."""

    text: str = ""  # as people see it; empty: the most frequent word
    lenses: Collection[str] | None = None  # texts that are read, by their ids; None: all

    def options(self) -> tuple[str, ...]:
        """The options of `moeprune plot token-experts`."""
        return ("--token-text", self.text) if self.text else ()


ALL_SHARES: Final = -1.0
EVERY: Final = "all"  # ALL_SHARES on the command line
USUAL_PATHS: Final = PathChoice()
USUAL_RESULTS: Final = ResultChoice()
USUAL_STRATA: Final = StrataChoice()
USUAL_TOKEN: Final = TokenChoice()


@dataclass(frozen=True, eq=False)
class Choices:
    """What a person chose on a page, or for a chart on the command line."""

    spec: PlanSpec  # of the plan; without a criterion if that is the variant (1, 0, 0)
    baseline: Criterion
    corpora: tuple[str, ...] = ()  # chosen ones, in the form of --calibrated-on, whatever ranks
    gate: Gate = "applied"
    bits: str = ""  # in which evaluations simulate the plan; empty for the checkpoint's own
    # On pages, where counts by hand and searches stand beside the schedules of commands: the
    # experts that each layer keeps by hand, and the name of a search; both begin with uniform.
    kept: Mapping[int, int] = field(default_factory=dict)
    search: str | None = None
    second: SecondRequest | None = None  # the second plan, if more than its criterion differs
    expert: tuple[int, int] | None = None  # the chosen layer and expert
    beside: tuple[str, ...] | None = None  # further criteria by tokens; None: CURVE_BESIDE
    paths: PathChoice = USUAL_PATHS
    results: ResultChoice = USUAL_RESULTS
    removed: float | None = None  # sparsity of the chart of equal sizes
    strata: StrataChoice = USUAL_STRATA
    token: TokenChoice = USUAL_TOKEN
    pair: tuple[str, ...] = ()  # two corpora of one criterion; none: those that agree least

    @property
    def schedule(self) -> str:
        """The schedule in tables of all schedules, where each search is one."""
        if self.search is not None:
            return f"{SEARCH}:{self.search}"
        return HAND if self.kept else self.spec.spread.schedule

    @property
    def criterion(self) -> Criterion | None:
        """The criterion of the plan; None if it is the constant variant (1, 0, 0)."""
        return self.spec.ranking.rule if self.spec.ranking.criterion else None

    @property
    def exponents(self) -> tuple[int, int, int] | None:
        """Those of the criterion; None if it has none."""
        return self.criterion.exponents if self.criterion else CONSTANT

    @property
    def ranking_criterion(self) -> Criterion:
        """The criterion of the plan; an error if it is the constant variant (1, 0, 0)."""
        if self.criterion is None:
            raise PlanError(SAME_SCORE)
        return self.criterion
