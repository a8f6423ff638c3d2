"""Verdicts on a plan, said alike everywhere: beside Random, and whether it may be shipped."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from statistics import fmean
from typing import Final

from analysis.model.moe_model import MoEModel
from pruning.plan.bits import FORMATS
from pruning.plan.plan import PruningPlan, changes_nothing, fit_plan, removes_nothing
from pruning.plan.sizes import format_bytes
from pruning.records.evaluation import EvaluationRecord
from pruning.records.plan_facts import PlanFacts, plan_facts
from pruning.records.quality import (
    LossIncrease,
    PlanLoss,
    RandomLoss,
    is_random,
    loss_of,
    original_in_bits,
    random_at,
)


@dataclass(frozen=True)
class AgainstRandom:
    """The loss increase of a plan next to Random's, in nats per token, over the same corpora."""

    mean: float  # of the plan
    chance: RandomLoss  # at the plan's sparsity, on these corpora alone
    is_repaired: bool  # Random is never repaired
    is_measured: bool = True  # else predicted

    @property
    def is_worse(self) -> bool:
        """Whether the plan loses more than Random on average."""
        return self.mean > self.chance.mean

    @property
    def is_within_spread(self) -> bool:
        """Whether both differ by no more than one standard deviation of Random's draws."""
        return abs(self.mean - self.chance.mean) <= (self.chance.mean_spread or 0.0)

    @property
    def comparison(self) -> str:
        """How much the plan loses next to Random: `less than`, and the like."""
        if self.is_within_spread:
            return "indistinguishable from"
        return "more than" if self.is_worse else "less than"

    @property
    def alarm(self) -> str:
        """A few words if the plan loses more than Random; else empty."""
        if not self.is_worse:
            return ""
        words = "no better than Random" if self.is_within_spread else "worse than Random"
        return words if self.is_measured else f"predicted {words}"

    @property
    def warning(self) -> str:
        """One line if the plan loses more than Random, with both losses; else empty."""
        if not self.is_worse:
            return ""
        chance = self.chance
        draws = f"mean of {chance.draws} draws" if chance.draws > 1 else "1 draw"
        spread = f", within one SD of {chance.mean_spread:.2f}" if self.is_within_spread else ""
        repair = " without repair" if self.is_repaired else ""
        return (
            f"{self.alarm[0].upper()}{self.alarm[1:]} at this sparsity: the plan adds "
            f"{self.mean:+z.2f} to the loss, Random{repair} {chance.mean:+z.2f} ({draws}{spread})."
        )


def against_random(
    loss: LossIncrease, facts: PlanFacts, losses: Sequence[PlanLoss]
) -> AgainstRandom | None:
    """The verdict on a loss, measured or predicted, of the plan with these facts.

    None for draws of Random, without a draw at this sparsity, and for a loss on other samples.
    `losses` are those of all plans of the model.
    """
    way = loss.way if isinstance(loss, PlanLoss) else ""
    if way or is_random(facts.criterion) or not facts.granularity:
        return None
    chance = random_at(losses, facts.removed or 0.0, facts.granularity, loss.change)
    if chance is None:
        return None
    mean = fmean(loss.change[corpus] for corpus in chance.change)
    return AgainstRandom(mean, chance, bool(facts.repair), isinstance(loss, PlanLoss))


def verdict_on(
    plan: PruningPlan,
    model: MoEModel,
    losses: Sequence[PlanLoss],
    predicted: LossIncrease | None = None,
) -> AgainstRandom | None:
    """`against_random` of a plan as it was measured, else as it is predicted."""
    if loss := loss_of(losses, plan.digest):
        return against_random(loss, loss.facts, losses)
    return against_random(predicted, plan_facts(plan, model), losses) if predicted else None


def random_warnings(
    records: Mapping[str, EvaluationRecord], losses: Sequence[PlanLoss]
) -> list[str]:
    """A line for each of these candidates that loses more than Random, by name.

    `losses` are those of all plans of the model, the candidates' on all corpora included.
    """
    plan_losses = {name: loss_of(losses, record.plan_digest) for name, record in records.items()}
    lines = {
        name: against.warning
        for name, loss in plan_losses.items()
        if loss and (against := against_random(loss, loss.facts, losses))
    }
    return [f"warning: {name}: {line}" for name, line in lines.items() if line]


class Light(StrEnum):
    """How good or bad a reason is; the worst one decides."""

    GREEN = "green"
    AMBER = "amber"
    RED = "red"


_HEADLINES: Final = {
    Light.GREEN: "Ready to ship",
    Light.AMBER: "Check before shipping",
    Light.RED: "Do not ship",
}
_ORDER: Final = tuple(Light)
_SHOWN: Final = 2  # reasons in one line


@dataclass(frozen=True, slots=True)
class Reason:
    """One thing that was looked at, and what it says."""

    about: str  # what was looked at, such as "Size"
    light: Light
    words: str  # one sentence, without a full stop
    short: str = ""  # a few words for one line, where the reason is not green


@dataclass(frozen=True, slots=True)
class ShipVerdict:
    """The verdict on a plan, from its recorded facts."""

    reasons: tuple[Reason, ...]

    @property
    def ordered(self) -> tuple[Reason, ...]:
        """The reasons, the worst first."""
        return tuple(sorted(self.reasons, key=lambda reason: -_ORDER.index(reason.light)))

    @property
    def light(self) -> Light:
        """That of the worst reason."""
        return max((reason.light for reason in self.reasons), key=_ORDER.index)

    @property
    def headline(self) -> str:
        """What the verdict says to do."""
        return _HEADLINES[self.light]

    @property
    def worst(self) -> tuple[Reason, ...]:
        """The reasons that decide; none of a green verdict."""
        if self.light is Light.GREEN:
            return ()
        return tuple(reason for reason in self.reasons if reason.light is self.light)

    @property
    def in_one_line(self) -> str:
        """The headline, and what decides: two reasons, and how many more."""
        shown, others = self.worst[:_SHOWN], self.worst[_SHOWN:]
        why = ", ".join(reason.short for reason in shown)
        why += f", {len(others)} more" if others else ""
        return f"{self.headline}: {why}" if why else self.headline

    @property
    def lines(self) -> tuple[str, ...]:
        """A line for each reason, the worst first: `red, Size: ...`."""
        return tuple(f"{reason.light}, {reason.about}: {reason.words}" for reason in self.ordered)

    @property
    def numbers(self) -> dict[str, object]:
        """The verdict and its reasons as plain JSON."""
        reasons = [
            {"about": reason.about, "light": str(reason.light), "words": reason.words}
            for reason in self.reasons
        ]
        return {"light": str(self.light), "headline": self.headline, "reasons": reasons}


QUALITY: Final = "Quality"
FOUR_BITS: Final = ("4", "mxfp4")  # what a plan has to beat: smaller, and no work


@dataclass(frozen=True, eq=False)
class Evidence:
    """What is recorded of a plan and of its export."""

    before: int  # bytes of the original's weights
    after: int  # bytes of the weights that the export writes, with its padding and heads
    losses: Sequence[PlanLoss]  # of all plans of the model
    plain: tuple[str, ...]  # the programs that were tried and load the export as it comes
    special: tuple[str, ...]  # and those with remote code, or of our own
    is_benchmarked: bool
    predicted: LossIncrease | None = None


def ship_verdict(plan: PruningPlan, model: MoEModel, evidence: Evidence) -> ShipVerdict | None:
    """The verdict on the export of a plan of the model.

    None for weights in fewer bits, which no export has, and for a plan that changes nothing.
    """
    complete = fit_plan(plan, model)
    if complete.named_bits or changes_nothing(complete, model):
        return None
    return ShipVerdict(
        (
            _size(complete, model, evidence),
            _against_random(complete, model, evidence),
            _engines(evidence),
            *_against_four_bits(complete, evidence),
            _benchmarks(evidence),
        )
    )


def _size(plan: PruningPlan, model: MoEModel, evidence: Evidence) -> Reason:
    words = f"{format_bytes(evidence.after)} instead of {format_bytes(evidence.before)}"
    if evidence.after < evidence.before:
        saved = 1 - evidence.after / evidence.before
        return Reason("Size", Light.GREEN, f"{words}, {saved:.0%} smaller")
    # Fewer experts per token are not meant to save any.
    light = Light.AMBER if removes_nothing(plan, model) else Light.RED
    return Reason("Size", light, words, "saves no bytes")


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
        words = f"{loss.words}; Random at this sparsity was not measured the same way"
        return Reason(about, Light.AMBER, words, "not compared with Random")
    if against.chance.mean_spread is None:
        words = f"{loss.words}{_beside_random(against)}, in a single draw"
        return Reason(about, Light.AMBER, words, "one draw of Random")
    if against.is_within_spread:
        words = f"{loss.words}{_beside_random(against)}, within one SD of its draws"
        return Reason(about, Light.AMBER, words, "hardly better than Random")
    return Reason(about, Light.GREEN, f"{loss.words}{_beside_random(against)}")


def _beside_random(against: AgainstRandom | None) -> str:
    return f"; Random adds {against.chance.mean:+z.2f}" if against else ""


def _against_four_bits(plan: PruningPlan, evidence: Evidence) -> Iterator[Reason]:
    """Whether the original in four bits is as small and loses as little; nothing if unknown.

    Only what was measured on the same corpora is compared.
    """
    loss = loss_of(evidence.losses, plan.digest)
    in_bits = original_in_bits(evidence.losses)
    rivals = [
        (FORMATS[bits].label, rival, rival.facts.bytes_after)
        for bits in FOUR_BITS
        if loss
        and not loss.way
        and (rival := in_bits.get(bits))
        and rival.facts.bytes_after
        and rival.change.keys() == loss.change.keys()
    ]
    if loss is None or not rivals:
        return
    label, rival, nbytes = min(rivals, key=lambda by_format: by_format[1].mean)
    better = [
        by_format
        for by_format in rivals
        if by_format[2] <= evidence.after and by_format[1].mean <= loss.mean
    ]
    if better:
        label, rival, nbytes = min(better, key=lambda by_format: by_format[1].mean)
        words = f"the original in {label} is no larger and loses no more"
        light, short = Light.AMBER, f"{label} alone is as good"
    else:
        words, light, short = f"not beaten by the original in {label}", Light.GREEN, ""
    words += f": {format_bytes(nbytes)} at {rival.mean:+z.3f}"
    yield Reason("Fewer bits", light, words, short)


def _benchmarks(evidence: Evidence) -> Reason:
    if evidence.is_benchmarked:
        return Reason("Benchmarks", Light.GREEN, "benchmarked")
    return Reason("Benchmarks", Light.AMBER, "not benchmarked", "not benchmarked")


def _engines(evidence: Evidence) -> Reason:
    if evidence.plain:
        words = f"{', '.join(evidence.plain)} load it without remote code"
        return Reason("Engines", Light.GREEN, words)
    if evidence.special:
        words = f"only {' or '.join(evidence.special)}"
        return Reason("Engines", Light.AMBER, words, words)
    return Reason("Engines", Light.RED, "no program that was tried loads it", "nothing loads it")
