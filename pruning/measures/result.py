"""Results of an evaluation: sums by sample -> means with bootstrap intervals. No torch.

Windows of one document are alike, so intervals resample documents, each with all of its samples.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from analysis.numbers.arrays import FloatArray, IntArray

ACCEPTANCE: Final = "spec-dec"
RIGHT: Final = "right"
RESAMPLES = 1000
MIDDLE = (2.5, 97.5)  # percentiles between which 95% lie
FEW_DOCUMENTS: Final = 10  # below so many, resampled documents say little of others
_ROUNDING = 1e-6


@dataclass(frozen=True, slots=True)
class Measure:
    """A measure of a candidate."""

    name: str  # on the command line and in results
    label: str  # on screen
    sums: str  # name of the position function to sum; empty if it is measured while decoding
    description: str  # one line
    higher_is_better: bool
    is_log: bool = False  # the mean over positions is the logarithm of the measure
    reference: str = ""  # paper
    unit: str = ""  # empty for shares and ratios
    is_percent: bool = False  # people read it as a percentage
    draws: bool = False  # its numbers depend on a seed

    @property
    def row(self) -> str:
        """What the table of measurements calls what it is counted from."""
        return self.sums.removeprefix("full_") or self.name

    @property
    def axis(self) -> str:
        """Label of an axis, with the unit."""
        return f"{self.label}, {self.unit}" if self.unit else self.label

    @property
    def bounds(self) -> tuple[float, float]:
        """The least and the most that it can be."""
        return float(self.is_log), 1.0 if self.higher_is_better else math.inf


_EVOESAP = "arXiv:2603.06003"
MEASURES: Mapping[str, Measure] = {
    measure.name: measure
    for measure in (
        Measure(
            name="esap",
            label="ESAP",
            sums="esap",
            description="Overlap of the next-token distributions, sum min(p, q): 1 if both models "
            "agree.",
            higher_is_better=True,
            reference=f"{_EVOESAP}, Eq. 14",
        ),
        Measure(
            name="sap",
            label="SAP",
            sums="sap",
            description="Chance that the original model accepts one token drawn from the pruned "
            "one.",
            higher_is_better=True,
            reference=f"{_EVOESAP}, Eq. 9",
            draws=True,
        ),
        Measure(
            name="kl",
            label="KL",
            sums="kl",
            description="KL(full || pruned) of the next-token distributions, in nats.",
            higher_is_better=False,
            unit="nats per token",
        ),
        Measure(
            name="nll",
            label="Loss",
            sums="nll",
            description="Negative log-likelihood of the text under the pruned model, in nats per "
            "token.",
            higher_is_better=False,
            unit="nats per token",
        ),
        Measure(
            name="ppl",
            label="Perplexity",
            sums="nll",
            description="Exponential of the loss.",
            higher_is_better=False,
            is_log=True,
        ),
        Measure(
            name=ACCEPTANCE,
            label="Speculative acceptance",
            sums="",
            description="Share of the pruned model's drafted tokens that the original accepts "
            "(sampling).",
            higher_is_better=True,
            reference="arXiv:2211.17192",
            draws=True,
        ),
        Measure(
            name=RIGHT,
            label="Right answers",
            sums="",
            description="Share of held-out questions that the pruned model answers right, by the "
            "check of their corpus.",
            higher_is_better=True,
            is_percent=True,
        ),
    )
}
# Measures of the original model, by the measure of the pruned one.
OF_FULL_MODEL: Mapping[str, Measure] = {
    name: Measure(
        name,
        f"{MEASURES[name].label} of the original model",
        "full_nll",
        MEASURES[name].description,
        higher_is_better=False,
        is_log=MEASURES[name].is_log,
    )
    for name in ("nll", "ppl")
}

# Measured while the model writes, not at positions of the text.
DECODED = tuple(name for name, measure in MEASURES.items() if not measure.sums)


@dataclass(frozen=True, slots=True, eq=False)
class SampleSums:
    """Sums of one measure by sample."""

    sums: FloatArray  # (samples,) float64
    counts: NDArray[np.int64]  # (samples,) positions, at least one
    documents: tuple[int, ...] | None = None  # of each sample, see `SampleValues`

    @property
    def means(self) -> FloatArray:
        """(samples,) means over positions."""
        return self.sums / self.counts


@dataclass(frozen=True, slots=True)
class SampleCount:
    """How many samples a measure is over, and what its interval rests on."""

    samples: int
    documents: int | None  # that they are of, see `SampleValues`

    @property
    def words(self) -> str:
        """The count, for people."""
        plural = "s" * (self.samples != 1)
        if self.documents is None:
            return f"{self.samples:,} window{plural} of one text"
        documents = f"{self.documents:,} document{'s' * (self.documents != 1)}"
        return f"{self.samples:,} sample{plural} of {documents}"

    @property
    def interval_words(self) -> str:
        """What its interval is, for people."""
        if self.documents is None:
            return "95% by windows of one text"
        if self.documents < 2:
            return "no interval, which takes two documents"
        few = ", rough: they are few" * (self.documents < FEW_DOCUMENTS)
        return f"95% by {self.documents:,} documents{few}"


@dataclass(frozen=True, slots=True)
class Metric:
    """One number of a result."""

    mean: float  # over the samples' means, equally weighted (arXiv:2603.06003, Eq. 16)
    pooled: float  # over the positions of all samples
    low: float | None  # low, high: 95% of `mean` by documents; None for one document, or unknown
    high: float | None


class LazyMetrics(Mapping[str, Metric]):
    """Metrics by measure, each computed when it is asked for: intervals take time."""

    def __init__(self, by_measure: Mapping[str, Callable[[], Metric]]) -> None:
        self._by_measure = by_measure

    def __getitem__(self, name: str) -> Metric:
        return self._by_measure[name]()

    def __contains__(self, name: object) -> bool:
        return name in self._by_measure  # without computing it

    def __iter__(self) -> Iterator[str]:
        return iter(self._by_measure)

    def __len__(self) -> int:
        return len(self._by_measure)


def check_possible(name: str, *values: float, sign: int = 1) -> None:
    """Refuse values that a measure cannot have, with a ValueError: what any file holds of it.

    Other names, such as variances, are of numbers from 0. `sign`: values are measures times it.
    """
    bounds = MEASURES[name].bounds if name in MEASURES else (0.0, math.inf)
    least, most = sorted(bound * sign + 0.0 for bound in bounds)
    for value in values:
        if not least - _ROUNDING <= value <= most + _ROUNDING or math.isinf(value):
            raise ValueError(f"its {name} is {value:g}, which is not in [{least:g}, {most:g}]")


@lru_cache(maxsize=1 << 15)
def summarise(sums: SampleSums, *, is_log: bool = False, seed: int = 42) -> Metric:
    """The metric of a measure; of a logarithm, its exponential throughout."""
    means = sums.means
    low, high = interval_or_none(SampleValues(means, sums.documents), seed)
    values = (float(means.mean()), float(sums.sums.sum() / sums.counts.sum()), low, high)
    if is_log:
        return Metric(*(None if value is None else _exp(value) for value in values))  # type: ignore[arg-type]
    return Metric(*values)


def _exp(value: float) -> float:
    try:
        return math.exp(value)
    except OverflowError:
        return math.inf


def document_places(documents: Sequence[int] | IntArray | None, num_samples: int) -> IntArray:
    """(samples,) the place of each sample's document among them, from 0; see `SampleValues`."""
    document_ids = range(num_samples) if documents is None else documents
    places = {document: place for place, document in enumerate(dict.fromkeys(document_ids))}
    return np.array([places[document] for document in document_ids], dtype=np.int64)


@dataclass(frozen=True, eq=False)
class SampleValues:
    """A value of every sample, with the document that the sample is of."""

    numbers: FloatArray  # (samples, ...)
    # Of each sample; None if unknown, as of windows of one text: then each counts as its own.
    documents: Sequence[int] | IntArray | None = None

    @cached_property
    def num_documents(self) -> int:
        """How many are known to be independent."""
        return len(set(document_places(self.documents, len(self.numbers)).tolist()))

    @cached_property
    def _clusters(self) -> IntArray:
        """(samples,) what is independent: documents; of a single one its samples, for want of more.

        Samples of one document differ less than documents do.
        """
        is_single = self.num_documents == 1
        return document_places(None if is_single else self.documents, len(self.numbers))

    @property
    def num_clusters(self) -> int:
        """How many parts are drawn with replacement."""
        return int(self._clusters.max()) + 1

    def resampled_means(self, times: FloatArray) -> FloatArray:
        """(RESAMPLES, ...) means over the samples of as many documents, drawn with replacement.

        `times` (RESAMPLES, clusters): how often each is drawn. A ratio estimator: documents with
        more samples weigh more, as they do in the mean.
        """
        places = self._clusters
        sizes = np.bincount(places)
        sums = np.zeros((len(sizes), *self.numbers.shape[1:]))
        np.add.at(sums, places, self.numbers)
        counts = (times @ sizes).reshape(-1, *[1] * (self.numbers.ndim - 1))
        return np.asarray(np.tensordot(times, sums, 1) / counts)

    def variance_of_mean(self) -> FloatArray:
        """(...) variance of the mean over samples, documents being independent.

        The linearised ratio estimator of cluster sampling: the sums of the documents' residuals,
        squared, times D / (D - 1) of D documents. With a sample per document it is the variance
        of the samples over their number.
        """
        places, mean = self._clusters, self.numbers.mean(axis=0)
        count = int(places.max()) + 1
        residuals = np.zeros((count, *self.numbers.shape[1:]))
        np.add.at(residuals, places, self.numbers - mean)
        squares = np.square(residuals).sum(axis=0) / len(self.numbers) ** 2
        return np.asarray(squares * count / max(count - 1, 1))


@lru_cache(maxsize=8)
def _draws(seed: int, clusters: tuple[int, ...]) -> tuple[FloatArray, ...]:
    """(RESAMPLES, clusters) of each corpus: how often each cluster is drawn."""
    rng, draws = np.random.default_rng(seed), []
    for count in clusters:
        shape = (RESAMPLES, count)
        places = rng.integers(count, size=shape) + count * np.arange(RESAMPLES)[:, None]
        times = np.bincount(places.ravel(), minlength=places.size).reshape(shape)
        draws.append(times.astype(np.float64))
    return tuple(draws)


def interval_of(corpora: Sequence[SampleValues], seed: int = 42) -> FloatArray:
    """95% percentile interval, by documents, of the mean over corpora of means over samples.

    The result is (2, ...): low, high; NaN if a corpus has a single document, of which there is no
    telling how others differ.
    """
    draws = _draws(seed, tuple(corpus.num_clusters for corpus in corpora))
    means = np.mean(
        [corpus.resampled_means(times) for corpus, times in zip(corpora, draws, strict=True)],
        axis=0,
    )
    interval = np.percentile(means, MIDDLE, axis=0)
    if any(corpus.num_documents < 2 for corpus in corpora):
        return np.full_like(interval, np.nan)
    return np.asarray(interval)


@dataclass(frozen=True, slots=True)
class Difference:
    """How much more one plan has than another, mean over corpora."""

    mean: float
    low: float  # low, high: 95% paired bootstrap interval by documents; NaN with a single one
    high: float

    @property
    def is_clear(self) -> bool:
        """Whether the interval excludes 0."""
        return self.low > 0 or self.high < 0


def paired_difference(apart: Sequence[SampleValues]) -> Difference:
    """From the differences by sample, (samples,) on each corpus.

    Documents are resampled within each corpus, the same ones for both plans.
    """
    low, high = interval_of(apart).tolist()
    return Difference(float(np.mean([values.numbers.mean() for values in apart])), low, high)


def interval_or_none(values: SampleValues, seed: int = 42) -> tuple[float | None, float | None]:
    """`interval_of` one number, for records: None where it is not known."""
    low, high = interval_of([values], seed).tolist()
    return (None, None) if math.isnan(low) else (low, high)


@dataclass(frozen=True, eq=False)
class Evaluation:
    """The measures of one candidate on one set of samples."""

    metrics: Mapping[str, Metric]  # by measure
    full: Mapping[str, Metric]  # `nll` and `ppl` of the original model, if measured
    samples: Mapping[str, SampleSums]  # by position function, in the order of the samples
    num_samples: int
    num_tokens: int  # scored positions of all samples


def make_evaluation(
    measures: Sequence[str], sums: Mapping[str, SampleSums], *, seed: int = 42
) -> Evaluation:
    """An evaluation from the sums by sample of `Measure.sums`, all over the same positions.

    `seed` is of the bootstrap.
    """
    metrics, full = (
        {
            name: summarise(sums[registry[name].sums], is_log=registry[name].is_log, seed=seed)
            for name in measures
            if registry is MEASURES or (name in registry and registry[name].sums in sums)
        }
        for registry in (MEASURES, OF_FULL_MODEL)
    )
    counts = next(iter(sums.values())).counts
    return Evaluation(metrics, full, dict(sums), len(counts), int(counts.sum()))
