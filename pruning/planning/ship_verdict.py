"""The one place that decides whether a plan may be shipped, from recorded facts alone."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from analysis.model.moe_model import MoEModel
from analysis.stats.store import StatsStore
from pruning.benchmarks.record import BenchmarkStore, is_benchmarked
from pruning.plan.bits import FORMATS
from pruning.plan.plan import PruningPlan, fit_plan
from pruning.plan.size_words import change_words
from pruning.plan.sizes import format_bytes
from pruning.planning.front_words import loss_text
from pruning.records.against_random import AgainstRandom, verdict_on
from pruning.records.evaluation import EvaluationStore
from pruning.records.front import original_in_bits
from pruning.records.quality import LossIncrease, PlanLoss, is_random, loss_of, stored_losses
from pruning.records.ship_verdict import Light, Reason, ShipVerdict
from pruning.serving.engines import Readers

QUALITY: Final = "Quality"
FOUR_BITS: Final = ("4", "mxfp4")  # what a plan has to beat: smaller, and no work


@dataclass(frozen=True, eq=False)
class Evidence:
    """What is recorded of a plan and of its export."""

    before: int  # bytes of the original's weights
    after: int  # bytes of the weights that the export writes, with its padding and heads
    losses: Sequence[PlanLoss]  # of all plans of the model
    readers: Readers  # the programs that were tried and load the export
    is_benchmarked: bool
    predicted: LossIncrease | None = None


def ship_verdict(plan: PruningPlan, model: MoEModel, evidence: Evidence) -> ShipVerdict:
    """The verdict on the export of a plan of the model."""
    complete = fit_plan(plan, model)
    return ShipVerdict(
        (
            _size(evidence),
            _against_random(complete, model, evidence),
            _engines(evidence.readers),
            *_against_four_bits(complete, evidence),
            _benchmarks(evidence),
        )
    )


def recorded_verdict(
    plan: PruningPlan,
    model: MoEModel,
    store: StatsStore,
    export: tuple[int, Readers],
    predicted: LossIncrease | None = None,
) -> ShipVerdict:
    """The verdict from what a statistics folder holds.

    `export` is the bytes of the weights that it writes, and the programs that load it.
    """
    num_bytes, readers = export
    digest, identity = fit_plan(plan, model).digest, model.identity
    evidence = Evidence(
        before=model.checkpoint.nbytes,
        after=num_bytes,
        losses=stored_losses(EvaluationStore(store.directories), identity),
        readers=readers,
        is_benchmarked=is_benchmarked(BenchmarkStore(store.directories), identity, digest),
        predicted=predicted,
    )
    return ship_verdict(plan, model, evidence)


def _size(evidence: Evidence) -> Reason:
    words = (
        f"{format_bytes(evidence.after)} instead of {format_bytes(evidence.before)}, "
        f"{change_words(evidence.before, evidence.after)}"
    )
    if evidence.after < evidence.before:
        return Reason("Size", Light.GREEN, words)
    return Reason("Size", Light.RED, words, "saves no bytes")


def _against_random(plan: PruningPlan, model: MoEModel, evidence: Evidence) -> Reason:
    """The loss next to Random's at this sparsity, as measured, else as predicted."""
    about, loss = QUALITY, loss_of(evidence.losses, plan.digest)
    against = verdict_on(plan, model, evidence.losses, evidence.predicted)
    if against and against.is_worse:
        return Reason(about, Light.RED, against.warning.rstrip("."), against.alarm)
    if loss is None and evidence.predicted is None:
        return Reason(about, Light.AMBER, "not measured", "loss not measured")
    if loss is None:
        words = f"predicted, not measured{_beside_random(against)}"
        return Reason(about, Light.AMBER, words, "loss only predicted")
    if is_random(plan.provenance.criterion):
        return Reason(about, Light.AMBER, f"{loss.words}: a random choice", "a random choice")
    if loss.missing:
        words = f"{loss.words}, not measured on {', '.join(loss.missing)}"
        return Reason(about, Light.AMBER, words, "loss measured in part")
    if against is None:
        if not loss.facts.removed:
            return Reason(about, Light.GREEN, loss.words)
        words = f"{loss.words}; Random at this sparsity was not measured the same way"
        return Reason(about, Light.AMBER, words, "not compared with Random")
    if against.is_within_spread:
        words = f"{loss.words}{_beside_random(against)}, within one SD of its draws"
        return Reason(about, Light.AMBER, words, "hardly better than Random")
    return Reason(about, Light.GREEN, f"{loss.words}{_beside_random(against)}")


def _beside_random(against: AgainstRandom | None) -> str:
    return f"; Random adds {against.chance.mean:+z.2f}" if against else ""


def _against_four_bits(plan: PruningPlan, evidence: Evidence) -> Iterator[Reason]:
    """Whether the original in four bits is smaller and loses less; nothing where it is unknown."""
    loss = loss_of(evidence.losses, plan.digest)
    if loss is None or loss.way or plan.bits:
        return
    in_bits = original_in_bits(evidence.losses)
    for bits in FOUR_BITS:
        rival = in_bits.get(bits)
        nbytes = rival.facts.bytes_after if rival else None
        if rival is None or nbytes is None:
            continue
        rival_words = f"{format_bytes(nbytes)} at {loss_text(rival.mean)}"
        label = FORMATS[bits].label
        if nbytes <= evidence.after and rival.mean <= loss.mean:
            words = f"the original in {label} is smaller and loses less: {rival_words}"
            yield Reason("Fewer bits", Light.AMBER, words, f"{label} alone is better")
            return
        words = f"not beaten by the original in {label}: {rival_words}"
        yield Reason("Fewer bits", Light.GREEN, words)
        return


def _benchmarks(evidence: Evidence) -> Reason:
    if evidence.is_benchmarked:
        return Reason("Benchmarks", Light.GREEN, "benchmarked")
    return Reason("Benchmarks", Light.AMBER, "not benchmarked", "not benchmarked")


def _engines(readers: Readers) -> Reason:
    if readers.plain:
        return Reason("Engines", Light.GREEN, f"{readers.words} load it without remote code")
    if readers.special:
        words = f"{readers.words} loads it"
        return Reason("Engines", Light.AMBER, words, readers.words)
    return Reason("Engines", Light.RED, "no program that was tried loads it", "nothing loads it")
