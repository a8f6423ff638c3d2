"""Display names of criteria and models."""

from typing import Final

from analysis.criteria import get_criterion
from analysis.errors import CriterionError

FULL: Final = "Original model"


def criterion_label(name: str) -> str:
    """The label of a criterion; imported plans keep their own name."""
    try:
        return get_criterion(name).label
    except CriterionError:
        return name
