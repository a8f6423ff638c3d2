"""The loss of plans over corpora, from evaluation records: mean and worst. No torch."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from statistics import fmean, stdev
from typing import Any, Final

from analysis.cache_keys import most_results
from analysis.criteria.weight_based import RANDOM
from analysis.lazy import pd
from pruning.measures.result import (
    SampleCount,
)
from pruning.measures.right_answers import RightAnswers
from pruning.measures.sample_losses import SampleLosses
from pruning.measures.store import OfRecords
from pruning.plan.bits import FORMATS
from pruning.records.evaluation import EvaluationRecord, EvaluationStore
from pruning.records.plan_facts import PlanFacts

LOSS: Final = "nll"
CANDIDATE_COLUMNS: Final = (
    "way",
    "plan",
    "criterion",
    "calibrated_on",
    "repaired_on",
    "repair_tokens",
    "schedule",
    "granularity",
    "sparsity",
    "removed",
    "bytes",
    "mean",
    "worst",
    "worst_on",
    "num_samples",
    "num_documents",
    "missing",
    "draws",
    "mean_spread",
    "worst_spread",
)


@dataclass(frozen=True, eq=False)
class LossIncrease:
    """Loss increase of a plan over the original model on the same samples, in nats per token.

    Lower is better; below 0 the pruned model is better.
    """

    change: Mapping[str, float]  # corpus -> loss increase

    @property
    def mean(self) -> float:
        """Mean over corpora, equally weighted."""
        return fmean(self.change.values())

    @property
    def worst(self) -> float:
        """The largest increase on one corpus."""
        return self.change[self.worst_on]

    @cached_property
    def worst_on(self) -> str:
        """The corpus with the largest increase."""
        return max(self.change, key=self.change.__getitem__)

    @property
    def words(self) -> str:
        """The loss in one line, for people."""
        if len(self.change) == 1:
            return f"loss {_nats(self.mean)} ({self.worst_on})"
        return f"loss {_nats(self.mean)} mean, {_nats(self.worst)} worst ({self.worst_on})"


def _nats(increase: float) -> str:
    """A loss increase with two decimals, or as many as it takes to see it, up to four."""
    decimals = next((digits for digits in (2, 3) if abs(increase) >= 0.5 * 10**-digits), 4)
    return f"{increase:+z.{decimals if increase else 2}f}"


@dataclass(frozen=True, eq=False)
class PlanLoss(LossIncrease):
    """The measured loss of a plan.

    `change` is on `corpora`, or on others if it was measured on none of them.
    """

    plan: str  # digest
    facts: PlanFacts
    way: str  # how it was measured, see `record_ways`
    corpora: tuple[str, ...]  # on which plans measured this way are compared
    full: Mapping[str, float]  # corpus -> loss of the original model
    samples: Mapping[str, SampleLosses]  # corpus -> losses by sample, where the files have them
    # Corpus -> which samples, see `DrawnSamples.corpus`.
    sample_facts: Mapping[str, Mapping[str, Any]]
    num_samples: int  # of the corpus with the fewest
    created_at: str  # of its newest evaluation
    # Corpus -> answers to its questions, where they were checked; none of parts of the documents.
    right: Mapping[str, RightAnswers] = field(default_factory=dict)
    kept: tuple[int, ...] = ()  # experts or neurons that stay in each layer

    @property
    def words(self) -> str:
        """The loss in one line, marked if it was measured in another way than most plans."""
        return ", ".join(filter(None, (super().words, self.way)))

    @cached_property
    def missing(self) -> tuple[str, ...]:
        """Corpora on which only other plans were measured."""
        return tuple(name for name in self.corpora if name not in self.change)

    @property
    def count(self) -> SampleCount:
        """The samples and the documents of the corpora with the fewest."""
        documents = [
            self.samples[name].num_documents
            if name in self.samples
            else self.sample_facts[name]["num_documents"]
            for name in self.change
        ]
        counts = (count for count in documents if count is not None)
        return SampleCount(self.num_samples, min(counts, default=None))

    @property
    def is_random(self) -> bool:
        """Whether it is a draw of Random."""
        return is_random(self.facts.criterion)

    @property
    def is_repaired(self) -> bool:
        """Whether the plan is repaired."""
        return bool(self.facts.repair)

    @property
    def random_name(self) -> str:
        """Random, as it is named beside this plan: see `random_at`."""
        return "Random without repair" if self.is_repaired else "Random"


@dataclass(frozen=True)
class RandomLoss:
    """Loss increase of several draws of Random at one sparsity, in nats per token."""

    draws: int  # distinct plans
    change: Mapping[str, float]  # corpus -> mean over draws
    mean: float  # over draws, of the mean over corpora
    worst: float  # mean over draws of the worst corpus
    mean_spread: float | None  # standard deviations of both over draws; None for a single draw
    worst_spread: float | None


def is_random(criterion: str) -> bool:
    """Whether a criterion of this name is Random, with any seed."""
    return criterion.partition(":")[0] == RANDOM.name


def plan_losses(records: Iterable[EvaluationRecord]) -> tuple[PlanLoss, ...]:
    """The loss of every plan of one model, once per way in which it was measured and made.

    First come those measured as most plans were: for each corpus on the same samples and in the
    same dtype. The corpora of a comparison maximise plans times corpora, so that a corpus of a
    single plan does not make the others incomplete. The original model is included, with 0.
    """
    measured = [record for record in records if LOSS in record.metrics and LOSS in record.full]
    measured.sort(key=lambda record: record.created_at)
    ways: defaultdict[str, list[EvaluationRecord]] = defaultdict(list)
    for record, way in zip(measured, record_ways(measured), strict=True):
        ways[way].append(record)
    return tuple(loss for way in sorted(ways) for loss in _losses_of_way(way, ways[way]))


_stored: Final = OfRecords[EvaluationRecord, tuple[PlanLoss, ...]](plan_losses)


@most_results(4)
def stored_losses(store: EvaluationStore, identity: str) -> tuple[PlanLoss, ...]:
    """`plan_losses` of the stored evaluations of a model; unreadable files are left out."""
    return _stored(store, identity)


def loss_of(losses: Iterable[PlanLoss], digest: str) -> PlanLoss | None:
    """The loss of a plan, preferably as most were measured and on most corpora; None if unknown."""
    matches = [loss for loss in losses if loss.plan == digest]
    return min(matches, key=lambda loss: (loss.way, len(loss.missing)), default=None)


def full_losses(losses: Sequence[PlanLoss]) -> Mapping[str, float]:
    """Corpus -> loss of the original model, nats per token, on the samples of most plans."""
    return {corpus: full for loss in losses if not loss.way for corpus, full in loss.full.items()}


def losses_at(losses: Iterable[PlanLoss], share: float) -> list[PlanLoss]:
    """Those that remove this share of the expert weights, to the precision of tables.

    With weights as they are and as many experts per token: fewer bits are another question, see
    `pruning.records.front`.
    """
    return [
        loss
        for loss in losses
        if loss.facts.removed and abs(loss.facts.removed - share) < 5e-5 and loss.facts.is_plain
    ]


def candidates_at(
    losses: Iterable[PlanLoss], share: float, granularity: str | None = None
) -> pd.DataFrame:
    """Table of CANDIDATE_COLUMNS: plans that remove this share, of one granularity or of all.

    Sorted by `way` (empty first; only rows of one way are comparable), then by `mean`. Candidates
    that lack a corpus of the comparison (`missing`, comma-separated) come last, without `mean` and
    `worst`. All draws of Random are one row without a `plan`, see `RandomLoss`; repaired ones are
    rows of their own.
    """
    candidates = [
        loss for loss in losses_at(losses, share) if granularity in (None, loss.facts.granularity)
    ]
    pooled: defaultdict[tuple[object, ...], list[PlanLoss]] = defaultdict(list)
    for place, candidate in enumerate(candidates):
        facts = candidate.facts
        kind: tuple[object, ...] = (place,)
        if candidate.is_random:
            kind = (
                facts.granularity,
                facts.schedule,
                facts.repair_corpora,
                facts.repair_tokens,
                candidate.missing,
            )
        pooled[(candidate.way, *kind)].append(candidate)
    table = pd.DataFrame(map(_row, pooled.values()), columns=list(CANDIDATE_COLUMNS))
    table = table.astype({"num_documents": "Int64"})
    return table.sort_values(["way", "mean"], kind="stable", ignore_index=True)


def original_in_bits(losses: Iterable[PlanLoss]) -> dict[str, PlanLoss]:
    """Format of all layers -> loss of the original model in it, as most plans were measured."""
    return {
        loss.facts.bits: loss
        for loss in losses
        if loss.facts.bits in FORMATS
        and not (loss.facts.removed or loss.facts.top_k or loss.way or loss.missing)
    }


def random_at(
    losses: Iterable[PlanLoss],
    share: float,
    granularity: str = "expert",
    corpora: Collection[str] | None = None,
) -> RandomLoss | None:
    """The loss of Random at one share of the expert weights, on the samples of most plans.

    Without a repair: Random is what chance alone gives. `corpora`: on these alone, if any of them
    was measured.
    """
    names = None if corpora is None else frozenset(corpora)
    return _random_at(tuple(losses), share, granularity, names)


@lru_cache(maxsize=32)
def _random_at(
    losses: tuple[PlanLoss, ...], share: float, granularity: str, corpora: frozenset[str] | None
) -> RandomLoss | None:
    draws = [
        loss
        for loss in losses_at(losses, share)
        if loss.is_random and not (loss.is_repaired or loss.way or loss.missing)
    ]
    if corpora is not None:
        draws = [replace(draw, change=_only(draw.change, corpora)) for draw in draws]
    return _pool([draw for draw in draws if draw.facts.granularity == granularity and draw.change])


def _only(change: Mapping[str, float], corpora: Collection[str]) -> dict[str, float]:
    """The loss increase on these corpora."""
    return {name: value for name, value in change.items() if name in corpora}


def record_ways(records: Sequence[EvaluationRecord]) -> list[str]:
    """What sets each apart from most of them, for display: other samples, another dtype.

    Empty for those with the samples on which, and the dtype in which, most plans were measured.
    Only records of one way are comparable.
    """
    dtypes = Counter(record.settings["dtype"] for record in records)
    dtype = max(dtypes, key=lambda name: (dtypes[name], name), default="")
    plans: defaultdict[tuple[str, str], set[str]] = defaultdict(set)
    examples: dict[tuple[str, str], EvaluationRecord] = {}
    for record in records:
        if record.settings["dtype"] != dtype:
            continue
        key = (record.corpus["name"], record.corpus["digest"])
        plans[key].add(record.plan_digest)
        examples[key] = record
    ordered = sorted(plans, key=lambda key: (len(plans[key]), examples[key].num_samples, key))
    # Corpus -> a record of the samples on which most plans were measured.
    usual = {key[0]: examples[key] for key in ordered}

    def way(record: EvaluationRecord) -> str:
        same, words = usual.get(record.corpus["name"], record), []
        if same.corpus["digest"] != record.corpus["digest"]:
            samples = _samples(record)
            words.append(samples if samples != _samples(same) else "other samples")
        if record.settings["dtype"] != dtype:
            words.append(record.settings["dtype"])
        return ", ".join(words)

    return list(map(way, records))


def _samples(record: EvaluationRecord) -> str:
    length, seed = record.corpus.get("seq_len"), record.corpus.get("seed")
    return f"{record.num_samples} samples of {length} tokens, seed {seed}"


def _losses_of_way(way: str, records: Sequence[EvaluationRecord]) -> list[PlanLoss]:
    """`records` are in order of time: the newer of two equal ones counts."""
    groups: defaultdict[tuple[object, ...], dict[str, EvaluationRecord]] = defaultdict(dict)
    for record in records:
        facts = record.plan
        kind = (facts.criterion, facts.gate, facts.corpora, facts.schedule)
        groups[(record.plan_digest, *kind)][record.corpus["name"]] = record
    corpora = compared([frozenset(by_corpus) for by_corpus in groups.values()])
    losses = []
    for by_corpus in groups.values():
        names = [name for name in corpora if name in by_corpus] or sorted(by_corpus)
        measured = {name: by_corpus[name] for name in names}
        last = max(by_corpus.values(), key=lambda record: record.created_at)
        full = {name: record.full_mean(LOSS) for name, record in measured.items()}
        loss = PlanLoss(
            plan=last.plan_digest,
            facts=last.plan,
            kept=last.kept,
            way=way,
            corpora=corpora,
            change={name: measured[name].mean(LOSS) - full[name] for name in names},
            full=full,
            samples={name: own for name, record in measured.items() if (own := record.samples)},
            sample_facts={name: record.corpus for name, record in measured.items()},
            num_samples=min(record.num_samples for record in measured.values()),
            created_at=last.created_at,
            right={
                n: record.right_answers for n, record in measured.items() if record.right_answers
            },
        )
        losses.append(loss)
    return losses


def compared(measured: Sequence[frozenset[str]]) -> tuple[str, ...]:
    """The corpora of a comparison, sorted: those that maximise plans times corpora.

    `measured` are the corpora of each plan.
    """
    areas = {
        corpora: len(corpora) * sum(corpora <= other for other in measured) for corpora in measured
    }
    best = max(areas, key=lambda corpora: (areas[corpora], len(corpora), *sorted(corpora)))
    return tuple(sorted(best))


def _pool(losses: Sequence[PlanLoss]) -> RandomLoss | None:
    # The same plan asked for in two ways, as a share and as a number of experts, is one draw.
    draws = list({loss.plan: loss for loss in losses}.values())
    if not draws:
        return None
    means, worsts = [draw.mean for draw in draws], [draw.worst for draw in draws]
    several = len(draws) > 1
    return RandomLoss(
        draws=len(draws),
        change={name: fmean(draw.change[name] for draw in draws) for name in draws[0].change},
        mean=fmean(means),
        worst=fmean(worsts),
        mean_spread=stdev(means) if several else None,
        worst_spread=stdev(worsts) if several else None,
    )


def _row(losses: Sequence[PlanLoss]) -> dict[str, object]:
    """A row of CANDIDATE_COLUMNS: one plan, or the draws of Random."""
    first, pooled = losses[0], _pool(losses)
    row = {
        "way": first.way,
        "plan": first.plan,
        **first.facts.columns,
        "num_samples": first.num_samples,
        "num_documents": first.count.documents,
        "missing": ", ".join(first.missing),
        "draws": 1,
    }
    if first.is_random:
        row |= {"criterion": RANDOM.name}
    if pooled is None or first.missing:
        return row
    row |= {"draws": pooled.draws, "mean": pooled.mean, "worst": pooled.worst}
    worst_on = max(pooled.change, key=pooled.change.__getitem__)
    row |= {"worst_on": worst_on, "num_samples": min(loss.num_samples for loss in losses)}
    counts = (loss.count.documents for loss in losses)
    row["num_documents"] = min((count for count in counts if count is not None), default=None)
    if pooled.draws > 1:
        row |= {"plan": "", "mean_spread": pooled.mean_spread, "worst_spread": pooled.worst_spread}
    return row
