"""Bins of experts or neurons by saliency: does a low score predict a low cost of removal?

After HEAPr, Fig. 3: tenths of all neurons, each removed alone, against their importance.
The figure bins by position (order "index"); bins by saliency show whether a score ranks well.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Self, get_args

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from analysis.criteria.base import Granularity
from analysis.errors import StatsError
from analysis.lazy import pd
from analysis.model.moe_model import MoEModel
from analysis.numbers.arrays import NeuronScores
from pruning.measurements.block import ORIGINAL
from pruning.measurements.records import MeasuredRecord, MeasuredStore
from pruning.measurements.table import PlanSums
from pruning.measures.result import SampleCount, SampleSums, SampleValues, interval_or_none
from pruning.plan.neuron_cuts import field_of
from pruning.plan.plan import (
    NEURON_GRANULARITY,
    Provenance,
    PruningPlan,
    digest_word,
    fit_plan,
    model_ref,
)

Scope = Literal["layer", "global"]
SCOPES: tuple[Scope, ...] = get_args(Scope)
Order = Literal["saliency", "index"]
ORDERS: tuple[Order, ...] = get_args(Order)
DEFAULT_BINS = 10
_ROUNDING = 1e-6
_LOSS = "nll"  # the measure of bins
BIN_COLUMNS = ("bin", "removed", "saliency", "share", "loss_change", "low", "high", "pooled")


@dataclass(frozen=True, slots=True)
class Binning:
    """How experts or neurons are split into bins."""

    bins: int = DEFAULT_BINS  # how many; empty ones are left out
    scope: Scope = "layer"  # each bin has its share of every layer, or of all layers together
    order: Order = "saliency"  # the least salient first, or by layer, expert and neuron


@dataclass(frozen=True, eq=False)
class Bin:
    """One bin of experts or neurons, and the plan that removes it alone."""

    number: int  # from 0, in order
    plan: PruningPlan
    removed: int  # experts or neurons
    saliency: float  # their mean
    share: float  # of the saliency of all; nan if that is 0


def bin_numbers(
    saliency: NDArray[np.float64], layers: NDArray[np.int64], how: Binning
) -> NDArray[np.int64]:
    """(entries,) the bin of each entry: equal parts of the order.

    `saliency` (entries,) is higher = keep, `layers` (entries,) the layer of each. Of equal entries
    the later one ranks lower, as in rankings.
    """
    groups = layers if how.scope == "layer" else np.zeros_like(layers)
    numbers = np.empty(len(saliency), dtype=np.int64)
    for group in np.unique(groups):
        members = np.flatnonzero(groups == group)
        if how.order == "saliency":
            members = members[np.lexsort((-members, saliency[members]))]
        numbers[members] = np.arange(len(members)) * how.bins // len(members)
    return numbers


def expert_bins(ranking: pd.DataFrame, model: MoEModel, how: Binning) -> list[Bin]:
    """Bins of experts, from a table `layer, expert, saliency` of all experts."""
    layers, experts = ranking["layer"].to_numpy(), ranking["expert"].to_numpy()
    saliency = ranking["saliency"].to_numpy(dtype=np.float64)
    numbers = bin_numbers(saliency, layers, how)
    bins = []
    for number in np.unique(numbers).tolist():
        cut = set(zip(layers[numbers == number], experts[numbers == number], strict=True))
        kept = {
            layer.index: tuple(
                expert for expert in range(layer.num_experts) if (layer.index, expert) not in cut
            )
            for layer in model.layers
        }
        plan = fit_plan(PruningPlan(model_ref(model), kept, Provenance()), model)
        bins.append(_bin(number, plan, saliency, numbers))
    return bins


def neuron_bins(scores: NeuronScores, model: MoEModel, how: Binning) -> list[Bin]:
    """Bins of neurons, from scores of all neurons; higher = keep."""
    field = field_of(scores)
    numbers = bin_numbers(field.saliency, np.repeat(field.layers, field.widths), how)
    owners = list(zip(field.layers.tolist(), field.experts.tolist(), strict=True))
    parts = np.split(numbers, np.cumsum(field.widths)[:-1])
    bins = []
    for number in np.unique(numbers).tolist():
        neurons: dict[int, dict[int, tuple[int, ...]]] = {}
        for (layer, expert), part in zip(owners, parts, strict=True):
            if (part == number).any():
                stays = tuple(np.flatnonzero(part != number).tolist())
                neurons.setdefault(layer, {})[expert] = stays
        cut = PruningPlan(model_ref(model), {}, Provenance(), NEURON_GRANULARITY, neurons)
        bins.append(_bin(number, fit_plan(cut, model), field.saliency, numbers))
    return bins


def _bin(
    number: int, plan: PruningPlan, saliency: NDArray[np.float64], numbers: NDArray[np.int64]
) -> Bin:
    bin_saliency, total = saliency[numbers == number], saliency.sum()
    share = float(bin_saliency.sum() / total) if total else float("nan")
    return Bin(number, plan, len(bin_saliency), float(bin_saliency.mean()), share)


def rank_agreement(table: pd.DataFrame) -> float:
    """Spearman's correlation of saliency and loss increase over bins; 1: in perfect order.

    nan if one of them is constant, or there are fewer than two bins.
    """
    if len(table) < 2 or table["saliency"].nunique() < 2 or table["loss_change"].nunique() < 2:
        return float("nan")
    from scipy.stats import spearmanr  # slow to import

    return float(spearmanr(table["saliency"], table["loss_change"]).statistic)


BINS_TABLE_COLUMNS = (
    "record",
    "granularity",
    "criterion",
    "gate",
    "calibrated_on",
    "corpus",
    "order",
    "scope",
    "bins",
    "removed",
    "agreement",
    "first",
    "last",
    "full_loss",
    "num_samples",
    "num_documents",
    "num_tokens",
    "dtype",
    "created_at",
)


@dataclass(frozen=True, slots=True)
class RankedBy:
    """The order of the experts or neurons."""

    criterion: str
    gate: str
    corpora: tuple[str, ...]  # of the statistics, with weights; empty if none were read
    runs: tuple[str, ...]  # as `corpora`
    granularity: Granularity
    how: Binning


@dataclass(frozen=True, slots=True)
class BinOf:
    """A bin of a record: a plan that removes what is in it; None if undefined."""

    bin: int
    removed: Annotated[int, Field(ge=1)]
    saliency: float | None
    share: float | None
    plan: str  # its digest


@dataclass(frozen=True, slots=True)
class BinRow:
    """What a bin costs, with BIN_COLUMNS; None if undefined."""

    bin: int
    removed: int
    saliency: float | None
    share: float | None
    loss_change: float
    low: float | None
    high: float | None
    pooled: float


class BinsRecord(MeasuredRecord):
    """The loss without each bin, on one set of samples.

    The digest covers model, order, plans of the bins, samples and settings.
    """

    folder = "bins"
    word = "record of bins"
    command = "bins"
    measured = "made"

    ranked: RankedBy
    bins: tuple[BinOf, ...]

    @model_validator(mode="after")
    def _can_be(self) -> Self:
        numbers = [part.bin for part in self.bins]
        if numbers != sorted({*numbers} & {*range(self.ranked.how.bins)}):
            raise ValueError(f"it has bins {numbers} of {self.ranked.how.bins}")
        shares = [part.share for part in self.bins if part.share is not None]
        if shares and abs(sum(shares) - 1) > _ROUNDING * max(1, *map(abs, shares)):
            raise ValueError(f"its shares of saliency sum to {sum(shares):g}, not 1")
        return self

    @classmethod
    def new(
        cls,
        model: MoEModel,
        ranked: RankedBy,
        bins: Sequence[Bin],
        corpus: Mapping[str, Any],
        settings: Mapping[str, Any],
    ) -> Self:
        """A record without results; `settings` are those that change the numbers."""
        order = asdict(ranked) | {"granularity": digest_word(ranked.granularity)}
        del order["runs"]  # a run repeated with more groups has another id and equal numbers
        deciding = {
            "model": model.identity,
            "ranked": order,
            "plans": [part.plan.digest for part in bins],
            "corpus": corpus["digest"],
            "settings": dict(settings),
        }
        names = (model.name, ranked.criterion, ranked.granularity, str(corpus["name"]))
        words = [Path(name).stem for name in names]
        rows = tuple(
            BinOf(
                part.number,
                part.removed,
                _finite(part.saliency),
                _finite(part.share),
                part.plan.digest,
            )
            for part in bins
        )
        fields = {"model": model_ref(model), "ranked": ranked, "bins": rows, "corpus": corpus}
        return cls.begun(words, deciding, **fields, settings=settings)

    @property
    def plans(self) -> tuple[str, ...]:
        """The plans of the bins, and the original model."""
        return (*(part.plan for part in self.bins), ORIGINAL)

    @property
    def lacking(self) -> str:
        """See `MeasuredRecord`: a plan may be known without its loss."""
        return next((plan for plan in self.plans if not self.knows(plan)), "")

    def knows(self, plan: str) -> bool:
        """Whether the loss of a plan is known."""
        return plan in self.numbers and _LOSS in self.numbers[plan].sums

    @property
    def _full(self) -> SampleSums:
        return self.numbers[ORIGINAL].sums[_LOSS]

    @property
    def rows(self) -> tuple[BinRow, ...]:
        """The loss increase without each bin, in nats per token.

        `loss_change` is the mean over samples, `low` and `high` its paired 95% interval by
        documents, `pooled` the mean over all positions.
        """
        before, rows = self._full, []
        for part in self.bins:
            after = self.numbers[part.plan].sums[_LOSS]
            change = after.means - before.means
            pooled = float((after.sums.sum() - before.sums.sum()) / after.counts.sum())
            ends = interval_or_none(SampleValues(change, after.documents), self.settings["seed"])
            facts = (part.bin, part.removed, part.saliency, part.share)
            rows.append(BinRow(*facts, float(change.mean()), *ends, pooled))
        return tuple(rows)

    @property
    def full_loss(self) -> float:
        """Of the original model on the samples, nats per token, mean over samples."""
        return float(self._full.means.mean())

    @property
    def num_samples(self) -> int:
        """How many samples it is over."""
        return len(self._full.counts)

    @property
    def num_tokens(self) -> int:
        """Scored positions of all samples."""
        return int(self._full.counts.sum())

    @property
    def count(self) -> SampleCount:
        """How many samples of how many documents."""
        return SampleCount(self.num_samples, self.corpus["num_documents"])

    @property
    def table(self) -> pd.DataFrame:
        """Table of BIN_COLUMNS, see `rows`."""
        table = pd.DataFrame(list(self.rows), columns=list(BIN_COLUMNS))
        return table.astype(dict.fromkeys(BIN_COLUMNS[2:], "float64"))

    def _facts(self) -> dict[str, Any]:
        """With the numbers, in the place of the plans."""
        facts = super()._facts()
        del facts["bins"]
        return {
            **facts,
            "rows": [asdict(row) for row in self.rows],
            "full_loss": self.full_loss,
            "num_samples": self.num_samples,
            "num_tokens": self.num_tokens,
        }

    def with_bin(self, plans: Mapping[str, PlanSums]) -> Self:
        """The record with the losses without one more bin."""
        if not all(np.isfinite(plan.sums[_LOSS].sums).all() for plan in plans.values()):
            raise StatsError(
                "The loss without a bin is no finite number; the model gives infinite or undefined "
                "logits, perhaps for lack of range: try --dtype bfloat16 or float32."
            )
        return self.with_numbers(plans)


def _finite(value: float) -> float | None:
    return value if np.isfinite(value) else None


class BinsStore(MeasuredStore[BinsRecord]):
    """Records of bins of one or more statistics directories; new ones go to the first."""

    kind = BinsRecord


def bins_overview(records: Iterable[BinsRecord]) -> pd.DataFrame:
    """Table of BINS_TABLE_COLUMNS, one row per record.

    `removed` is of all bins together, `agreement` see `rank_agreement`, `first` and `last` the loss
    increase without the first and the last bin, in nats per token.
    """
    rows = []
    for record in records:
        ranked, table = record.ranked, record.table
        changes = table["loss_change"]
        row = {
            "record": record.record_id,
            **asdict(ranked),
            **asdict(ranked.how),
            "calibrated_on": "+".join(ranked.corpora),
            "corpus": record.corpus["name"],
            "bins": len(table),
            "removed": int(table["removed"].sum()),
            "agreement": rank_agreement(table),
            "first": changes.iloc[0],
            "last": changes.iloc[-1],
            "full_loss": record.full_loss,
            "num_samples": record.num_samples,
            "num_documents": record.count.documents,
            "num_tokens": record.num_tokens,
            "dtype": record.settings["dtype"],
            "created_at": record.created_at,
        }
        rows.append(row)
    overview = pd.DataFrame(rows, columns=list(BINS_TABLE_COLUMNS))
    return overview.astype({"num_documents": "Int64"})
