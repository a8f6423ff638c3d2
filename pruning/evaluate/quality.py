"""The loss of plans over all corpora, from evaluation records: mean and worst. No torch."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean, stdev
from typing import Any, Final

from analysis.criteria.weight_based import RANDOM
from analysis.lazy import pd
from pruning.evaluate.record import EvaluationRecord, EvaluationStore, PlanFacts, SampleLosses
from pruning.evaluate.store import readable_records

LOSS: Final = "nll"
CANDIDATE_COLUMNS: Final = (
    *("way", "plan", "criterion", "calibrated_on", "schedule", "granularity", "sparsity"),
    *("removed", "bytes", "mean", "worst", "worst_on", "num_samples", "missing"),
    *("draws", "mean_spread", "worst_spread"),
)
_Way = tuple[int, object, object, str]  # samples, their tokens at most, seed, dtype


@dataclass(frozen=True, eq=False)
class AddedLoss:
    """What a plan adds to the loss of the original model on the same samples, in nats per token.

    Lower is better; below 0 the pruned model is the better one.
    """

    change: Mapping[str, float]  # corpus -> added loss

    @property
    def mean(self) -> float:
        """Mean over corpora, each of which counts the same."""
        return fmean(self.change.values())

    @property
    def worst(self) -> float:
        """The most that it adds on one corpus."""
        return self.change[self.worst_on]

    @cached_property
    def worst_on(self) -> str:
        """The corpus on which it adds most."""
        return max(self.change, key=self.change.__getitem__)

    @property
    def words(self) -> str:
        """The loss in one line, for people."""
        if len(self.change) == 1:
            return f"loss {self.mean:+.2f} ({self.worst_on})"
        return f"loss {self.mean:+.2f} mean, {self.worst:+.2f} worst ({self.worst_on})"


@dataclass(frozen=True, eq=False)
class PlanLoss(AddedLoss):
    """What was measured of a plan.

    `change` is of `corpora`; of others only where it was measured on none of them.
    """

    plan: str  # digest
    facts: PlanFacts
    way: str  # how it was measured; empty: as most plans were
    corpora: tuple[str, ...]  # on which the plans that were measured this way are compared
    full: Mapping[str, float]  # corpus -> loss of the original model
    # Corpus of `change` -> the loss of every sample, in the same order for all plans of a way; of
    # files that kept none it is missing.
    samples: Mapping[str, SampleLosses]
    drawn: Mapping[str, Mapping[str, Any]]  # corpus -> which samples, see `DrawnSamples.corpus`
    num_samples: int  # of the corpus with the fewest
    created_at: str  # the newest of its evaluations

    @cached_property
    def missing(self) -> tuple[str, ...]:
        """Corpora on which other plans were measured and this one was not."""
        return tuple(name for name in self.corpora if name not in self.change)

    @property
    def is_random(self) -> bool:
        """Whether it is a draw of the baseline Random."""
        return is_random(self.facts.criterion)


@dataclass(frozen=True)
class RandomLoss:
    """What chance costs: several draws of Random at one share; nats per token."""

    draws: int  # different plans
    change: Mapping[str, float]  # corpus -> added loss, mean over draws
    # mean, worst: means over draws of each draw's mean and worst over corpora.
    mean: float
    worst: float
    # Standard deviations of the same between draws; None of a single draw.
    mean_spread: float | None
    worst_spread: float | None


def is_random(criterion: str) -> bool:
    """Whether a criterion of this name draws at random, with whatever seed."""
    return criterion.partition(":")[0] == RANDOM.name


def plan_losses(records: Iterable[EvaluationRecord]) -> tuple[PlanLoss, ...]:
    """The loss of every plan of one model, one for each way in which it was measured and made.

    Those measured as most come first. Of each corpus these share one set of samples and one dtype:
    the ones on which most plans were measured. The corpora of a comparison are those that give the
    most plans times corpora, so that a corpus of one plan alone does not make others incomplete.
    The unpruned model is among them, with 0.
    """
    measured = [each for each in records if LOSS in each.metrics and LOSS in each.full]
    usual = _usual_samples(measured)
    ways: defaultdict[str, list[EvaluationRecord]] = defaultdict(list)
    for record in sorted(measured, key=lambda each: each.created_at):
        is_usual = usual.get(record.corpus["name"]) == _samples(record)
        ways["" if is_usual else _way_words(_way(record))].append(record)
    return tuple(loss for way in sorted(ways) for loss in _losses_of_way(way, ways[way]))


def stored_losses(store: EvaluationStore, identity: str) -> tuple[PlanLoss, ...]:
    """`plan_losses` of what is known of a model; files that cannot be read are left out."""
    records, _ = readable_records(store, identity)
    return plan_losses(records)


def loss_of(losses: Iterable[PlanLoss], digest: str) -> PlanLoss | None:
    """The loss of one plan: as most plans were measured, on the most corpora; None without any."""
    found = [each for each in losses if each.plan == digest]
    return min(found, key=lambda each: (each.way, len(each.missing)), default=None)


def full_losses(losses: Sequence[PlanLoss]) -> Mapping[str, float]:
    """Corpus -> loss of the original model, nats per token, on the samples of most plans."""
    return {corpus: full for each in losses if not each.way for corpus, full in each.full.items()}


def losses_at(losses: Iterable[PlanLoss], share: float) -> list[PlanLoss]:
    """Those that remove this share of the expert weights."""
    removed = ((each, each.facts.removed) for each in losses)
    return [each for each, gone in removed if gone and _is_share(gone, share)]


def candidates_at(
    losses: Iterable[PlanLoss], share: float, granularity: str | None = None
) -> pd.DataFrame:
    """The candidates that remove one share of the expert weights, of one granularity or of all.

    Returns:
        CANDIDATE_COLUMNS, by ``way`` (empty first; of each, `mean` is a ranking of its own), then
        the smallest ``mean`` first. What lacks a corpus of the comparison (``missing``, joined by
        commas) stands last, without ``mean`` and ``worst``. All draws of Random are one row of so
        many ``draws``, without a ``plan``, see `RandomLoss`.
    """
    found = [
        each for each in losses_at(losses, share) if granularity in (None, each.facts.granularity)
    ]
    pooled: defaultdict[tuple[object, ...], list[PlanLoss]] = defaultdict(list)
    for place, each in enumerate(found):
        facts = each.facts
        kind = (facts.granularity, facts.schedule, each.missing) if each.is_random else (place,)
        pooled[(each.way, *kind)].append(each)
    table = pd.DataFrame(map(_row, pooled.values()), columns=list(CANDIDATE_COLUMNS))
    return table.sort_values(["way", "mean"], kind="stable", ignore_index=True)


def random_at(
    losses: Iterable[PlanLoss], share: float, granularity: str = "expert"
) -> RandomLoss | None:
    """What Random costs at one share of the expert weights, on the samples of most plans."""
    found = [
        each
        for each in losses_at(losses, share)
        if each.is_random and not each.way and each.facts.granularity == granularity
    ]
    return _pooled([each for each in found if not each.missing])


def _is_share(removed: float, share: float) -> bool:
    """Whether two shares of the expert weights are the same, as tables write them."""
    return abs(removed - share) < 5e-5


def _samples(record: EvaluationRecord) -> tuple[str, str]:
    return record.corpus["digest"], record.settings["dtype"]


def _way(record: EvaluationRecord) -> _Way:
    corpus = record.corpus
    settings = corpus.get("seq_len"), corpus.get("seed")
    return record.num_samples, *settings, record.settings["dtype"]


def _way_words(way: _Way) -> str:
    """How something was measured, for people."""
    samples, length, seed, dtype = way
    return f"{samples} samples of {length} tokens, seed {seed}, {dtype}"


def _usual_samples(records: Sequence[EvaluationRecord]) -> dict[str, tuple[str, str]]:
    """Corpus -> the digest of the samples, and the dtype, with which most plans were measured."""
    dtypes = Counter(each.settings["dtype"] for each in records)
    usual = max(dtypes, key=lambda name: (dtypes[name], name), default="")
    known = [each for each in records if each.settings["dtype"] == usual]
    plans: defaultdict[tuple[str, str], set[str]] = defaultdict(set)
    size: dict[tuple[str, str], int] = {}
    for record in known:
        key = (record.corpus["name"], record.corpus["digest"])
        plans[key].add(record.plan_digest)
        size[key] = record.num_samples
    ordered = sorted(plans, key=lambda key: (len(plans[key]), size[key], key))
    return {name: (digest, usual) for name, digest in ordered}


def _losses_of_way(way: str, records: Sequence[EvaluationRecord]) -> list[PlanLoss]:
    """`records` are in the order of time: of two of the same the newer one counts."""
    made: defaultdict[tuple[object, ...], dict[str, EvaluationRecord]] = defaultdict(dict)
    for record in records:
        facts = record.plan
        kind = (facts.criterion, facts.gate, facts.corpora, facts.schedule)
        made[(record.plan_digest, *kind)][record.corpus["name"]] = record
    corpora = compared([frozenset(found) for found in made.values()])
    return [_loss(way, corpora, found) for found in made.values()]


def compared(measured: Sequence[frozenset[str]]) -> tuple[str, ...]:
    """The corpora of a comparison, of those on which each plan was measured: the most plans times
    corpora; sorted.
    """
    areas = {each: len(each) * sum(each <= other for other in measured) for each in measured}
    best = max(areas, key=lambda each: (areas[each], len(each), *sorted(each)))
    return tuple(sorted(best))


def _loss(way: str, corpora: tuple[str, ...], found: Mapping[str, EvaluationRecord]) -> PlanLoss:
    shown = [name for name in corpora if name in found] or sorted(found)
    last = max(found.values(), key=lambda each: each.created_at)
    return PlanLoss(
        plan=last.plan_digest,
        facts=last.plan,
        way=way,
        corpora=corpora,
        change={
            name: found[name].metrics[LOSS].mean - found[name].full[LOSS].mean for name in shown
        },
        full={name: found[name].full[LOSS].mean for name in shown},
        samples={name: kept for name in shown if (kept := found[name].samples)},
        drawn={name: found[name].corpus for name in shown},
        num_samples=min(found[name].num_samples for name in shown),
        created_at=last.created_at,
    )


def _pooled(found: Sequence[PlanLoss]) -> RandomLoss | None:
    # Two ways to the same plan, such as a share and a number of experts, are one draw.
    draws = list({each.plan: each for each in found}.values())
    if not draws:
        return None
    means, worsts = [each.mean for each in draws], [each.worst for each in draws]
    several = len(draws) > 1
    return RandomLoss(
        draws=len(draws),
        change={name: fmean(each.change[name] for each in draws) for name in draws[0].change},
        mean=fmean(means),
        worst=fmean(worsts),
        mean_spread=stdev(means) if several else None,
        worst_spread=stdev(worsts) if several else None,
    )


def _row(found: Sequence[PlanLoss]) -> dict[str, object]:
    """A row of CANDIDATE_COLUMNS of one plan, or of the draws of Random."""
    first, pooled = found[0], _pooled(found)
    row = {
        **{"way": first.way, "plan": first.plan, **first.facts.columns},
        **{"num_samples": first.num_samples, "missing": ", ".join(first.missing), "draws": 1},
    }
    if first.is_random:
        row |= {"criterion": RANDOM.name}
    if pooled is None or first.missing:
        return row
    row |= {"draws": pooled.draws, "mean": pooled.mean, "worst": pooled.worst}
    worst_on = max(pooled.change, key=pooled.change.__getitem__)
    row |= {"worst_on": worst_on, "num_samples": min(each.num_samples for each in found)}
    if pooled.draws > 1:
        row |= {"plan": "", "mean_spread": pooled.mean_spread, "worst_spread": pooled.worst_spread}
    return row
