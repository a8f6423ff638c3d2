"""What a plan saves and costs, in words that everybody knows."""

from math import exp

from app.loaded import Loaded
from app.session.plan_data import bytes_after
from pruning.evaluate.quality import PlanLoss, RandomLoss
from pruning.planning.make import CurrentPlan
from pruning.size_words import change_words


def headline(
    loaded: Loaded, current_plan: CurrentPlan, loss: PlanLoss | None, chance: RandomLoss | None
) -> str:
    """What goes, what that saves, and what it and chance cost, in words that everybody knows."""
    before, after = loaded.model.checkpoint.nbytes, bytes_after(loaded, current_plan)
    words = f"{removed_share(loaded)}: {change_words(before, after)}"
    if loss is None:
        about = f", perplexity about x{exp(loaded.predicted.mean):.1f}" if loaded.predicted else ""
        return f"{words}{about}."
    words += f", perplexity x{exp(loss.mean):.1f}"
    if chance is None or loss.is_random:
        return f"{words}."
    return f"{words} (random: x{exp(chance.mean):.1f})."


def removed_share(loaded: Loaded) -> str:
    """Sparsity in words: `Half of the experts gone`."""
    what = "neurons" if loaded.choices.spec.by_neuron else "experts"
    if loaded.choices.spec.by_neuron and loaded.choices.spec.budget.sparsity is None:
        unit = "parameters" if loaded.choices.spec.budget.params_share else "bytes"
        return f"{loaded.sparsity} of the {unit} gone"
    share = "Half" if loaded.percent == 50 else loaded.sparsity
    return f"{share} of the {what} gone"
