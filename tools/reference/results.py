"""Tables of what was measured on the demo, of the evaluations that ship."""

from collections.abc import Hashable, Iterable, Mapping, Sequence
from math import exp
from pathlib import Path
from statistics import fmean
from typing import Any

from analysis.criteria import get_criterion
from analysis.demo.listing import DEMO_CORPORA
from analysis.files.shipped import SHIPPED_STATS
from analysis.model.opening import load_model_index
from pruning.plan.bits import FORMATS
from pruning.plan.variant_words import repaired_name, tokens_words
from pruning.planning.front_words import loss_text
from pruning.records.evaluation import EvaluationStore
from pruning.records.front import stored_front
from pruning.records.quality import (
    PlanLoss,
    candidates_at,
    full_losses,
    loss_of,
    losses_at,
    random_at,
    stored_losses,
)
from pruning.records.quality_by_sample import difference
from pruning.records.right_of_plans import (
    original_shares,
    random_draws,
    right_shares,
    usual_questions,
)
from tools.reference.markdown import table

__all__ = ["bits", "candidates", "losses", "repairs", "right_answers", "same_bytes"]

_BLEND = tuple(sorted(name for name, corpus in DEMO_CORPORA.items() if corpus.is_usual))
_SHARES = (0.25, 0.5, 0.75)
_NAMED = ("ean", "reap", "frequency", "man", "damage", "aimer")  # with right answers at each share
_BYTES = 77 / 192  # of the experts, and as much of the neurons
_MIB = 2**20


def _stored() -> tuple[PlanLoss, ...]:
    return stored_losses(EvaluationStore((SHIPPED_STATS,)), load_model_index("demo").identity)


def losses(_root: Path) -> str:
    """README's result: REAP at 50%, before and after its repair, beside Random."""
    measured = _stored()
    plain, repaired = _even(measured, "reap", 0.5)
    chance, draws = random_at(measured, 0.5), random_draws(measured, 0.5, "expert")
    rows = [("all experts", "", "", f"{_mean(_original(measured)):.0%}")]
    rows += [_result(name, [loss]) for name, loss in ((_name(repaired), repaired), ("REAP", plain))]
    if chance:
        name = f"random experts, mean of {chance.draws} draws"
        rows.append(_result(name, draws))
    return table(("plan", "loss", "perplexity", "right answers"), rows)


def _result(name: str, plans: Sequence[PlanLoss]) -> tuple[str, ...]:
    loss = fmean(plan.mean for plan in plans)
    return name, f"{loss:+z.2f}", f"{exp(loss):.2f} times", f"{_mean(_right(plans)):.0%}"


def candidates(_root: Path) -> str:
    """Every plan of whole experts at 50% that ships with all measures, best first."""
    measured = _stored()
    asked = [loss for loss in measured if loss.right]
    rows = []
    for row in candidates_at(asked, 0.5, "expert").to_dict("records"):
        plan = loss_of(asked, row["plan"])
        plans = [plan] if plan else random_draws(asked, 0.5, "expert")
        name, worst = get_criterion(row["criterion"]).label, f"{row['worst']:+z.2f}"
        name = repaired_name(name, row["repair_tokens"]) if row["repaired_on"] else name
        mean, worst = f"{row['mean']:+z.2f}", f"{worst} ({_short(row['worst_on'])})"
        if row["draws"] > 1:
            name += f", {row['draws']} draws"
            mean += f", SD {row['mean_spread']:.2f}"
            worst += f", SD {row['worst_spread']:.2f}"
        corpora = row["calibrated_on"]
        on = "blend" if "+" in corpora else _short(corpora) or "-"
        schedule = "searched" if row["schedule"] == "search" else row["schedule"]
        rows.append((name, on, schedule, mean, worst, f"{_mean(_right(plans)):.0%}"))
    head = ("criterion", "calibrated on", "schedule", "mean", "worst", "right answers")
    return table(head, rows)


def right_answers(_root: Path) -> str:
    """Right answers of plans by corpus, at each share and in fewer bits."""
    measured = _stored()
    rows = [_shares("all experts", _original(measured))]
    for removed in _SHARES:
        gone = f"{removed:.0%} removed"
        for name in _NAMED:
            rows += [
                _shares(f"{_name(plan)}, {gone}", _right([plan]))
                for plan in _even(measured, name, removed)
                if plan and plan.right
            ]
        draws = random_draws(measured, removed, "expert")
        rows.append(_shares(f"Random, {gone}, mean of {len(draws)} draws", _right(draws)))
    rows += [_shares(name, _right([plan])) for name, plan in _in_bits(measured)]
    return table(("plan", *map(_short, DEMO_CORPORA), "mean"), rows)


def _in_bits(measured: Iterable[PlanLoss]) -> Iterable[tuple[str, PlanLoss]]:
    for bits in ("4", "3", "2"):
        for plan in measured:
            facts = plan.facts
            if facts.bits != bits or not plan.right or facts.removed not in (None, 0, 0.5):
                continue
            name = f"{_name(plan)}, 50% removed" if facts.removed else "all experts"
            yield f"{name}, {bits} bits", plan


def repairs(_root: Path) -> str:
    """The loss of plans at 50% before and after their repair, by corpus, and what comes back."""
    measured, rows = _stored(), []
    for name in ("reap", "ean", "frequency"):
        plain, repaired = _even(measured, name, 0.5)
        if plain is None or repaired is None:
            continue
        back = difference(plain, repaired)
        words = f"{back.mean / plain.mean:.0%} ({back.low:.3f} to {back.high:.3f})"
        for plan, comes_back in ((plain, ""), (repaired, words)):
            changes = [f"{plan.change[corpus]:.3f}" for corpus in DEMO_CORPORA]
            rows.append((_name(plan), *changes, f"{plan.mean:.3f}", comes_back))
    return table(("plan", *map(_short, DEMO_CORPORA), "mean", "comes back"), rows)


def bits(_root: Path) -> str:
    """The loss and the size of EAN's even plans in every format."""
    front = stored_front(EvaluationStore((SHIPPED_STATS,)), load_model_index("demo"))
    measured = front.table[front.table["is_measured"]].round({"removed": 4})
    named = measured["criterion"].isin(("", "ean")) & measured["schedule"].isin(("", "uniform"))
    on_blend = measured["calibrated_on"].isin(("", "+".join(_BLEND)))
    by_plan = measured[named & on_blend].groupby(["removed", "repair_tokens"])
    formats, rows = ("", *FORMATS), []
    for (removed, tokens), plans in by_plan:
        cells = {row["bits"]: row for row in plans.to_dict("records")}
        kept = "all" if not removed else f"{1 - removed:.0%}"
        kept += f", repaired on {tokens_words(int(tokens))}" if tokens else ""
        rows.append((kept, *(_loss_and_size(cells[name]) for name in formats)))
    head = ["16 bits", *(name.upper() for name in FORMATS)]
    return table(("experts", *head), rows)


def _loss_and_size(row: Mapping[Hashable, Any]) -> str:
    return f"{loss_text(row['mean']).removeprefix('+')} ({row['bytes'] / _MIB:.1f})"


def same_bytes(_root: Path) -> str:
    """The loss of whole experts and of neurons of the same bytes, by the corpus that ranks."""
    measured = _stored()
    ways: dict[tuple[str, str, str], list[PlanLoss]] = {}
    for plan in losses_at(measured, _BYTES):
        facts = plan.facts
        name = "random" if plan.is_random else facts.criterion
        ways.setdefault((facts.granularity, name, facts.schedule), []).append(plan)
    by_loss: dict[tuple[bool, float], tuple[str, ...]] = {}
    for (granularity, name, schedule), plans in ways.items():
        losses = [_by_its_corpus(plans, corpus) for corpus in DEMO_CORPORA]
        way = f"{get_criterion(name).label}, {schedule.removeprefix('neurons by ')}"
        way += f", mean of {len(plans)} draws" if name == "random" and len(plans) > 1 else ""
        kind = "whole experts" if granularity == "expert" else "neurons"
        row = (f"{kind}, {way}", *map(loss_text, losses))
        by_loss[granularity == "expert", fmean(losses)] = row
    full = full_losses(measured)
    head = ("removed", *(f"{_short(corpus)} ({full[corpus]:.3f})" for corpus in DEMO_CORPORA))
    return table(head, [row for _, row in sorted(by_loss.items())])


def _by_its_corpus(plans: Sequence[PlanLoss], corpus: str) -> float:
    """The mean loss on a corpus: of the plans that it ranks, or of all if it ranks none."""
    ranked = [plan for plan in plans if corpus in plan.facts.corpora]
    return fmean(plan.change[corpus] for plan in ranked or plans)


def _even(
    measured: Iterable[PlanLoss], criterion: str, removed: float
) -> tuple[PlanLoss | None, PlanLoss | None]:
    """The plan of equal counts, of the blend if it reads text; and the same repaired."""
    corpora = () if get_criterion(criterion).source == "weights" else _BLEND
    plans = {
        loss.is_repaired: loss
        for loss in losses_at(measured, removed)
        if (loss.facts.criterion, tuple(sorted(loss.facts.corpora))) == (criterion, corpora)
        and (loss.facts.granularity, loss.facts.schedule) == ("expert", "uniform")
        and not loss.way
    }
    return plans.get(False), plans.get(True)


def _right(plans: Sequence[PlanLoss]) -> dict[str, float]:
    return right_shares(plans, usual_questions(plans))


def _original(measured: Iterable[PlanLoss]) -> dict[str, float]:
    measured = list(measured)
    return original_shares(measured, usual_questions(measured))


def _mean(shares: dict[str, float]) -> float:
    return fmean(shares[corpus] for corpus in DEMO_CORPORA)


def _shares(name: str, shares: dict[str, float]) -> tuple[str, ...]:
    return name, *(f"{shares[corpus]:.0%}" for corpus in DEMO_CORPORA), f"{_mean(shares):.0%}"


def _name(plan: PlanLoss) -> str:
    name = get_criterion(plan.facts.criterion).label
    return repaired_name(name, plan.facts.repair_tokens) if plan.is_repaired else name


def _short(corpus: str) -> str:
    return corpus.removeprefix("demo-")
