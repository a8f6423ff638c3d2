"""What a plan saves and costs, in words that everybody knows."""

from collections.abc import Sequence
from math import exp
from statistics import fmean

from app.loaded import CurrentPlan, Loaded
from app.session.plan_data import bytes_after
from pruning.plan.bits import bits_words
from pruning.plan.size_words import change_words
from pruning.records.quality import PlanLoss, RandomLoss
from pruning.records.right_of_plans import right_rows


def headline(
    loaded: Loaded, current_plan: CurrentPlan, loss: PlanLoss | None, chance: RandomLoss | None
) -> str:
    """What goes, what that saves, and what it and chance cost, in words that everybody knows."""
    before, after = loaded.model.checkpoint.nbytes, bytes_after(loaded, current_plan)
    in_bits = bits_words(current_plan.plan.bits)
    removed = f"{removed_share(loaded)}{in_bits and f'{in_bits} (simulated)'}"
    words = f"{removed}: {change_words(before, after)}"
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


def removed_share(loaded: Loaded) -> str:
    """Sparsity in words: `Half of the experts gone`."""
    what = "neurons" if loaded.choices.spec.by_neuron else "experts"
    if loaded.choices.spec.by_neuron and loaded.choices.spec.budget.sparsity is None:
        unit = "parameters" if loaded.choices.spec.budget.params_share else "bytes"
        return f"{loaded.sparsity} of the {unit} gone"
    share = "Half" if loaded.percent == 50 else loaded.sparsity
    return f"{share} of the {what} gone"
