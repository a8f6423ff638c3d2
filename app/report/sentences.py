"""The sentences of the findings, as plain text: the page Story and its file say the same."""

from collections.abc import Collection, Mapping, Sequence
from math import exp
from statistics import fmean
from typing import Final

from app.charts.sizes import size_text
from app.choices import CONSTANT
from app.loaded import CurrentPlan, Loaded, loss_of_plan, loss_text
from pruning.plan.bits import bits_words
from pruning.plan.size_words import change_words
from pruning.records.quality import PlanLoss
from pruning.records.right_of_plans import right_apart, right_rows

# Finding -> its title, in the order of the story.
TITLES: Final[Mapping[str, str]] = {
    "saves": "What pruning saves",
    "criteria": "Criteria disagree",
    "stratification": "Stratification",
    "corpora": "The corpus decides",
    "budget": "Where the budget goes",
    "ships": "The checkpoint that ships",
}
DEMO_NOTE: Final = "A small model trained for this demo; its rankings are its own."
SAME_SCORE: Final = f"{CONSTANT} gives every expert the same score, so no plan follows from it."


def headline(loaded: Loaded, current_plan: CurrentPlan, after: int) -> str:
    """What goes, what that saves, and what it and chance cost, in words that everybody knows.

    `after`: bytes of the export.
    """
    loss, chance = loss_of_plan(loaded)
    in_bits = bits_words(current_plan.plan.named_bits)
    removed = f"{_removed_share(loaded)}{in_bits and f'{in_bits} (simulated)'}"
    words = f"{removed}: {change_words(loaded.model.checkpoint.nbytes, after)}"
    if loss is None:
        about = f", perplexity about x{exp(loaded.predicted.mean):.1f}" if loaded.predicted else ""
        return f"{words}{about}."
    if loss.right:
        return f"{words}, {_right_words(loss, loaded.study.losses)}."
    words += f", perplexity x{exp(loss.mean):.1f}"
    if chance is None or loss.is_random:
        return f"{words}."
    return f"{words} (random: x{exp(chance.mean):.1f})."


def _right_words(loss: PlanLoss, losses: Sequence[PlanLoss]) -> str:
    """Right answers of the original, of the plan and of Random, means over its corpora."""
    rows = right_rows(loss, losses)
    full, plan = fmean(row.full.mean for row in rows), fmean(row.plan.mean for row in rows)
    words = f"right answers {full:.0%} → {plan:.0%}"
    random = [row.random for row in rows if row.random is not None]
    return f"{words} (random: {fmean(random):.0%})" if len(random) == len(rows) else words


def _removed_share(loaded: Loaded) -> str:
    """Sparsity in words: `Half of the experts gone`."""
    what = "neurons" if loaded.choices.spec.by_neuron else "experts"
    if loaded.choices.spec.by_neuron and loaded.choices.spec.budget.sparsity is None:
        unit = "parameters" if loaded.choices.spec.budget.params_share else "bytes"
        return f"{loaded.sparsity} of the {unit} gone"
    share = "Half" if loaded.percent == 50 else loaded.sparsity
    return f"{share} of the {what} gone"


def saving(loaded: Loaded, current_plan: CurrentPlan, after: int) -> str:
    """The headline, and of a plan that was not evaluated what is known of its loss."""
    words = headline(loaded, current_plan, after)
    loss, chance = loss_of_plan(loaded)
    if loss is not None:
        return words
    text = loss_text(loaded, loss, chance)
    return f"{words} {text[0].upper()}{text[1:]}."


def comparable(loss: PlanLoss | None) -> PlanLoss | None:
    """A loss that compares with those of other plans."""
    return None if loss is None or loss.way or loss.missing else loss


def disagreement(keeps: str, drops: str, units: str, instead: str) -> str:
    """What one criterion keeps that another drops: `units` is `41 experts`."""
    return f"{keeps} keeps {units} that {drops} drops{instead}."


def instead_of(loss: PlanLoss | None, other: PlanLoss | None) -> str:
    """The losses of both plans, if both were measured."""
    if not (loss and other):
        return "; losses are not measured"
    words = f": loss {loss.mean:+z.2f} instead of {other.mean:+z.2f}"
    if right_apart(loss, other) is None:
        return words
    shares = (fmean(answers.share for answers in one.right.values()) for one in (loss, other))
    return f"{words}, right answers {' instead of '.join(f'{share:.0%}' for share in shares)}"


def own_criterion(label: str) -> str:
    """Of the exponents of the plan's own criterion."""
    return f"{label} is the criterion of the plan; choose other exponents to compare."


def calibrated_on(corpus: str, label: str, loss: PlanLoss) -> str:
    """What calibration on a corpus costs on each."""
    sentence = f"Calibrated on {corpus}, {label} adds {_by_corpus(loss.change, '+z.2f')}."
    if loss.right:
        shares = {name: answers.share for name, answers in loss.right.items()}
        sentence += f" Right answers: {_by_corpus(shares, '.0%')}."
    return sentence


def _by_corpus(values: Mapping[str, float], form: str) -> str:
    return ", ".join(f"{value:{form}} on {name}" for name, value in values.items())


def not_measured(finding: str) -> str:
    """A finding of the ranking alone."""
    return f"{finding} Losses are not measured."


def spread_of_budget(schedule: str, counts: Collection[int], loss: str) -> str:
    """How many experts each layer keeps under a schedule."""
    low, high = min(counts), max(counts)
    spread = f"{low} experts in every layer" if low == high else f"{low} to {high} experts a layer"
    return f"{schedule} keeps {spread}; {loss}."


def shipped(sizes: tuple[int, int], loss: str, programs: str) -> str:
    """What the export weighs, from bytes before and after, what it costs, what loads it."""
    before, after = map(size_text, sizes)
    where = f"loads in {programs or 'no engine that was tried'}"
    return f"{after} instead of {before}, {loss}; {where}."
