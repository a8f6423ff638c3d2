"""Single schedules, applied to layers and a budget."""

from pruning.constraints import Constraints
from pruning.schedules import Evidence, Spending, allocate


def patterned(layers, budget, pattern, constraints=None):
    """The allocation by a pattern."""
    return allocate(pattern, Spending(tuple(layers), budget, constraints or Constraints()))


def ranked_globally(layers, budget, saliency, constraints=None):
    """The allocation that removes the experts of the lowest saliency."""
    spending = Spending(tuple(layers), budget, constraints or Constraints())
    return allocate("global", spending, Evidence(saliency))
